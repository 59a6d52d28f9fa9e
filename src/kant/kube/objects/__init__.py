"""API objects of Kubernetes as slim views, with their quantities, times and the rules for what they may say."""
