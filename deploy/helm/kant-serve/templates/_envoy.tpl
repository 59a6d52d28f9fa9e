{{- define "serve.envoy" -}}
static_resources:
  listeners:
    - name: clients
      address: { socket_address: { address: 0.0.0.0, port_value: 10000 } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: clients
                stream_idle_timeout: {{ .Values.timeouts.idle }} # in which nothing comes from either side
                request_headers_timeout: 10s
                always_set_request_id_in_response: true # the client's x-request-id, otherwise a new one; the engine gets the same
                access_log: # a line of JSON for each request, without text
                  - name: envoy.access_loggers.stdout
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog
                      log_format:
                        json_format:
                          time: "%START_TIME%"
                          id: "%REQ(X-REQUEST-ID)%"
                          path: "%PATH(NQ:PATH)%"
                          status: "%RESPONSE_CODE%"
                          why: "%RESPONSE_CODE_DETAILS%"
                          backend: "%UPSTREAM_HOST%"
                          attempts: "%UPSTREAM_REQUEST_ATTEMPT_COUNT%"
                          first_ms: "%RESPONSE_DURATION%"
                          whole_ms: "%DURATION%"
                route_config:
                  virtual_hosts:
                    - name: engines
                      domains: ["*"]
                      routes:
                        - match: { prefix: "/" }
                          route:
                            cluster: engines
                            timeout: {{ .Values.timeouts.whole }} # an answer may stream for minutes
                            retry_policy: # each retry goes to the next endpoint of the picker's list
                              retry_on: connect-failure,refused-stream,retriable-status-codes
                              retriable_status_codes: [429, 503] # refused; whatever else has reached an engine reaches no other
                              num_retries: 2
                http_filters:
                  - name: envoy.filters.http.ext_proc
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
                      grpc_service: { envoy_grpc: { cluster_name: picker } }
                      processing_mode:
                        request_header_mode: SEND
                        request_body_mode: FULL_DUPLEX_STREAMED
                        request_trailer_mode: SEND
                        response_header_mode: SEND # the picker ejects who answers badly
                        response_body_mode: NONE # no token goes through the picker: an answer that has begun outlives it
                        response_trailer_mode: SKIP
                      message_timeout: 60s # longer than the picker's --hold-s
                      failure_mode_allow: {{ .Values.failOpen }} # without a picker: the fallback below, as its cluster has no healthy host
                      metadata_options: # what the picker may hear and say
                        forwarding_namespaces: { untyped: [envoy.lb, envoy.lb.subset_hint] }
                        receiving_namespaces: { untyped: [envoy.lb] }
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: picker
      type: STRICT_DNS
      connect_timeout: 1s
      # A body that was begun for a picker cannot be sent elsewhere, so Envoy must know before that it is away.
      common_lb_config: { healthy_panic_threshold: { value: 0 } }
      health_checks:
        - interval: 0.5s
          no_traffic_interval: 0.5s
          timeout: 5s
          unhealthy_threshold: 1
          healthy_threshold: 1
          grpc_health_check: { service_name: liveness }
      outlier_detection: # the first connection that fails says so sooner
        split_external_local_origin_errors: true
        consecutive_local_origin_failure: 1
        enforcing_consecutive_local_origin_failure: 100
        max_ejection_percent: 100
        base_ejection_time: 1s
        interval: 1s
      circuit_breakers: &all # a stream for each request under way: Envoy's own limit is 1,024
        thresholds:
          - max_connections: {{ int .Values.limits.requests }}
            max_pending_requests: {{ int .Values.limits.requests }}
            max_requests: {{ int .Values.limits.requests }}
            retry_budget: { budget_percent: { value: 20 }, min_retry_concurrency: 3 }
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
      load_assignment:
        cluster_name: picker
        endpoints:
          - lb_endpoints:
              - endpoint: { address: { socket_address: { address: {{ .Release.Name }}-picker.{{ .Release.Namespace }}.svc, port_value: 9002 } } }
    - name: engines
      type: STRICT_DNS
      connect_timeout: {{ .Values.timeouts.connect }}
      per_connection_buffer_limit_bytes: {{ int .Values.limits.bufferBytes }} # a body is kept whole for a retry
      circuit_breakers: *all
      outlier_detection: # beside the picker's own, which forgets with it
        consecutive_5xx: {{ .Values.ejection.after }}
        base_ejection_time: {{ .Values.ejection.base }}
        max_ejection_time: 300s
        max_ejection_percent: {{ .Values.ejection.mostPercent }}
      load_assignment:
        cluster_name: engines
        endpoints:
          - lb_endpoints:
              - endpoint: { address: { socket_address: { address: {{ .Values.engines.service }}.{{ .Release.Namespace }}.svc, port_value: {{ int .Values.engines.port }} } } }
      load_balancing_policy:
        policies:
          - typed_extension_config:
              name: envoy.load_balancing_policies.override_host
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
                override_host_sources:
                  - metadata: { key: envoy.lb, path: [{ key: x-gateway-destination-endpoint }] }
                  - header: x-gateway-destination-endpoint
                selected_host_key: # the picker hears who has served
                  key: envoy.lb
                  path: [{ key: x-gateway-destination-endpoint-served }]
                fallback_policy:
                  policies:
                    - typed_extension_config:
                        name: envoy.load_balancing_policies.round_robin
                        typed_config:
                          "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin
{{- end }}
