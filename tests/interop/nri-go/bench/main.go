// The Go adaptation under load: what our own runtime side is measured against.
//
//	bench SOCKET PLUGINS IN_FLIGHT SECONDS
//
// It waits until so many plugins have connected, asks them about new containers for so long
// with so many requests at once, and prints how many there were, and the median and the 99th
// percentile of their times in nanoseconds.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"sync"
	"time"

	nri "github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	socket := os.Args[1]
	numbers := make([]int, 3)
	for i, text := range os.Args[2:5] {
		number, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		numbers[i] = number
	}
	plugins, inFlight, seconds := numbers[0], numbers[1], numbers[2]

	synced := make(chan struct{}, plugins)
	sync := func(ctx context.Context, tell nri.SyncCB) error {
		_, err := tell(ctx, nil, nil)
		synced <- struct{}{}
		return err
	}
	update := func(context.Context, []*nri.ContainerUpdate) ([]*nri.ContainerUpdate, error) {
		return nil, nil
	}
	none := filepath.Dir(socket)
	adaptation, err := nri.New("bench", "1", sync, update,
		nri.WithSocketPath(socket), nri.WithPluginPath(none+"/none"), nri.WithPluginConfigPath(none+"/none"))
	if err != nil {
		return err
	}
	if err := adaptation.Start(); err != nil {
		return err
	}
	fmt.Println("ready")
	for range plugins {
		<-synced
	}
	time.Sleep(100 * time.Millisecond)
	times, err := load(adaptation, inFlight, time.Duration(seconds)*time.Second)
	if err != nil {
		return err
	}
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	fmt.Println(len(times), times[len(times)/2].Nanoseconds(), times[len(times)*99/100].Nanoseconds())
	adaptation.Stop()
	return nil
}

func load(adaptation *nri.Adaptation, inFlight int, span time.Duration) ([]time.Duration, error) {
	var (
		group sync.WaitGroup
		mutex sync.Mutex
		all   []time.Duration
		fault error
	)
	end := time.Now().Add(span)
	for worker := range inFlight {
		group.Add(1)
		go func() {
			defer group.Done()
			var own []time.Duration
			var err error
			for i := 0; time.Now().Before(end) && err == nil; i++ {
				begun := time.Now()
				_, err = adaptation.CreateContainer(context.Background(), request(worker, i))
				own = append(own, time.Since(begun))
			}
			mutex.Lock()
			defer mutex.Unlock()
			all = append(all, own...)
			if err != nil {
				fault = err
			}
		}()
	}
	group.Wait()
	return all, fault
}

// A container as a small web service has it: the same that our side is asked about.
func request(worker, i int) *nri.CreateContainerRequest {
	container := &api.Container{
		Id:           fmt.Sprintf("%032d%032d", worker, i),
		PodSandboxId: "pod",
		Name:         "web",
		Args:         []string{"/usr/bin/web", "--listen", ":8080"},
		Linux:        &api.LinuxContainer{Resources: &api.LinuxResources{}},
	}
	for n := range 20 {
		container.Env = append(container.Env, fmt.Sprintf("SERVICE_%02d_HOST=10.0.0.%d", n, n))
	}
	for n := range 10 {
		container.Mounts = append(container.Mounts, &api.Mount{
			Destination: fmt.Sprintf("/var/lib/data-%d", n), Source: fmt.Sprintf("/srv/data-%d", n),
			Type: "bind", Options: []string{"rbind", "rprivate", "ro"},
		})
	}
	return &nri.CreateContainerRequest{Pod: &api.PodSandbox{Id: "pod", Name: "pod"}, Container: container}
}
