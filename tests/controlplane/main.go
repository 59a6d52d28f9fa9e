// The parts of a real Kubernetes control plane that the tests and benchmarks of Kant talk to, in one binary:
// etcd, kube-apiserver and kube-scheduler, chosen by the first argument.
package main

import (
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	if len(os.Args) < 2 {
		fail("expected etcd, kube-apiserver or kube-scheduler as the first argument")
	}
	name := os.Args[1]
	os.Args = append([]string{name}, os.Args[2:]...)
	var command *cobra.Command
	switch name {
	case "etcd":
		etcd()
		return
	case "kube-apiserver":
		command = apiserver.NewAPIServerCommand()
	case "kube-scheduler":
		command = scheduler.NewSchedulerCommand()
	default:
		fail("expected etcd, kube-apiserver or kube-scheduler as the first argument, not " + name)
	}
	os.Exit(cli.Run(command))
}

// etcd DATA_DIR CLIENT_URL PEER_URL: one member, which does not wait for the disk.
func etcd() {
	if len(os.Args) != 4 {
		fail("expected etcd DATA_DIR CLIENT_URL PEER_URL")
	}
	client, err := url.Parse(os.Args[2])
	if err != nil {
		fail(err.Error())
	}
	peer, err := url.Parse(os.Args[3])
	if err != nil {
		fail(err.Error())
	}
	config := embed.NewConfig()
	config.Dir = os.Args[1]
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.UnsafeNoFsync = true
	config.LogLevel = "error"
	config.QuotaBackendBytes = 8 << 30
	server, err := embed.StartEtcd(config)
	if err != nil {
		fail(err.Error())
	}
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(time.Minute):
		fail("etcd did not come up within a minute")
	}
	fail((<-server.Err()).Error())
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, "controlplane: "+why)
	os.Exit(1)
}
