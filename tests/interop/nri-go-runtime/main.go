// The runtime side of the Go library, driven line by line from a test.
//
// A command is a name and, in base64, the protobuf message it is about; the answer is "ok"
// with a message or "err" with a text. The plugins are whoever connects to the socket, and
// what is in the plugin directory.
//
//	nri-go-runtime SOCKET PLUGIN_DIR CONFIG_DIR
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	nri "github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
)

// A test on a busy machine is not the place to enforce two seconds.
const requestTimeout = 60 * time.Second

type runtime struct {
	*nri.Adaptation

	mu      sync.Mutex
	world   nri.SynchronizeRequest
	synced  nri.SynchronizeResponse
	started bool
	syncs   int
	updates nri.UpdateContainersRequest
	refused map[string]bool
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 4 {
		return errors.New("usage: nri-go-runtime SOCKET PLUGIN_DIR CONFIG_DIR")
	}
	nri.SetPluginRegistrationTimeout(requestTimeout)
	nri.SetPluginRequestTimeout(requestTimeout)
	r := &runtime{refused: map[string]bool{}}
	var err error
	r.Adaptation, err = nri.New("interop", "v1.2.3", r.sync, r.update,
		nri.WithSocketPath(os.Args[1]),
		nri.WithPluginPath(os.Args[2]),
		nri.WithPluginConfigPath(os.Args[3]))
	if err != nil {
		return err
	}
	return r.serve(bufio.NewReaderSize(os.Stdin, 1<<20), bufio.NewWriter(os.Stdout))
}

// sync gives a new plugin the world and keeps what it asks for.
func (r *runtime) sync(ctx context.Context, cb nri.SyncCB) error {
	r.mu.Lock()
	world := proto.Clone(&r.world).(*nri.SynchronizeRequest)
	r.mu.Unlock()
	updates, err := cb(ctx, world.Pods, world.Containers)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.started {
		// The first call is for the plugins in the directory, if any.
		r.started = true
		return err
	}
	r.synced.Update = updates
	r.syncs++
	return err
}

// update takes what a plugin asks for by itself.
func (r *runtime) update(_ context.Context, updates []*nri.ContainerUpdate) ([]*nri.ContainerUpdate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.updates.Update = append(r.updates.Update, updates...)
	var failed []*nri.ContainerUpdate
	for _, update := range updates {
		if r.refused[update.ContainerId] {
			failed = append(failed, update)
		}
	}
	return failed, nil
}

func (r *runtime) serve(in *bufio.Reader, out *bufio.Writer) error {
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			// The test has gone.
			return nil
		}
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		payload, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return err
		}
		answer, err := r.command(name, payload)
		if err != nil {
			fmt.Fprintf(out, "err %s\n", strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			encoded, err := proto.Marshal(answer)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "ok %s\n", base64.StdEncoding.EncodeToString(encoded))
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
}

func (r *runtime) command(name string, payload []byte) (proto.Message, error) {
	ctx := context.Background()
	empty := &api.Empty{}
	switch name {
	case "start":
		return empty, r.Start()
	case "world":
		r.mu.Lock()
		defer r.mu.Unlock()
		return empty, proto.Unmarshal(payload, &r.world)
	case "synced":
		return r.waitSynced()
	case "updates":
		r.mu.Lock()
		defer r.mu.Unlock()
		updates := proto.Clone(&r.updates)
		r.updates.Update = nil
		return updates, nil
	case "refuse":
		r.mu.Lock()
		defer r.mu.Unlock()
		r.refused[string(payload)] = true
		return empty, nil
	case "RunPodSandbox":
		return empty, call(ctx, payload, &nri.RunPodSandboxRequest{}, r.RunPodSandbox)
	case "UpdatePodSandbox":
		return ask(ctx, payload, &nri.UpdatePodSandboxRequest{}, r.UpdatePodSandbox)
	case "PostUpdatePodSandbox":
		return empty, call(ctx, payload, &nri.PostUpdatePodSandboxRequest{}, r.PostUpdatePodSandbox)
	case "StopPodSandbox":
		return empty, call(ctx, payload, &nri.StopPodSandboxRequest{}, r.StopPodSandbox)
	case "RemovePodSandbox":
		return empty, call(ctx, payload, &nri.RemovePodSandboxRequest{}, r.RemovePodSandbox)
	case "CreateContainer":
		return ask(ctx, payload, &nri.CreateContainerRequest{}, r.CreateContainer)
	case "PostCreateContainer":
		return empty, call(ctx, payload, &nri.PostCreateContainerRequest{}, r.PostCreateContainer)
	case "StartContainer":
		return empty, call(ctx, payload, &nri.StartContainerRequest{}, r.StartContainer)
	case "PostStartContainer":
		return empty, call(ctx, payload, &nri.PostStartContainerRequest{}, r.PostStartContainer)
	case "UpdateContainer":
		return ask(ctx, payload, &nri.UpdateContainerRequest{}, r.UpdateContainer)
	case "PostUpdateContainer":
		return empty, call(ctx, payload, &nri.PostUpdateContainerRequest{}, r.PostUpdateContainer)
	case "StopContainer":
		return ask(ctx, payload, &nri.StopContainerRequest{}, r.StopContainer)
	case "RemoveContainer":
		return empty, call(ctx, payload, &nri.RemoveContainerRequest{}, r.RemoveContainer)
	}
	return nil, fmt.Errorf("no command %q", name)
}

// waitSynced waits for a plugin to connect and to be synchronized, and returns what it asked for.
func (r *runtime) waitSynced() (proto.Message, error) {
	deadline := time.Now().Add(requestTimeout)
	for time.Now().Before(deadline) {
		r.mu.Lock()
		if r.syncs > 0 {
			r.syncs--
			synced := proto.Clone(&r.synced)
			r.mu.Unlock()
			// The plugin becomes active under the lock that we take here.
			r.BlockPluginSync().Unblock()
			return synced, nil
		}
		r.mu.Unlock()
		time.Sleep(5 * time.Millisecond)
	}
	return nil, errors.New("no plugin was synchronized")
}

func call[Q proto.Message](ctx context.Context, payload []byte, request Q, f func(context.Context, Q) error) error {
	if err := proto.Unmarshal(payload, request); err != nil {
		return err
	}
	return f(ctx, request)
}

func ask[Q, A proto.Message](ctx context.Context, payload []byte, request Q, f func(context.Context, Q) (A, error)) (proto.Message, error) {
	if err := proto.Unmarshal(payload, request); err != nil {
		return nil, err
	}
	answer, err := f(ctx, request)
	return answer, err
}
