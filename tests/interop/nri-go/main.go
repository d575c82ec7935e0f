// A plugin on the official stub, for tests of our runtime side.
//
// It writes a line of JSON for everything it is told, and does what its mode says. Modes come
// by flag, or, where the runtime started it, by its configuration:
//
//	log=<file> mode=<mode>,<mode>
//
// A container whose annotation "adjust", or that of its pod, is an adjustment in JSON gets it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"google.golang.org/protobuf/encoding/protojson"
)

type line struct {
	Event     string `json:"event"`
	Pod       string `json:"pod,omitempty"`
	Container string `json:"container,omitempty"`
	Detail    string `json:"detail,omitempty"`
}

type plugin struct {
	stub  stub.Stub
	modes map[string]bool
	mutex sync.Mutex
	out   *os.File
}

func (p *plugin) log(event string, pod *api.PodSandbox, container *api.Container, detail string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	text, err := json.Marshal(line{event, pod.GetId(), container.GetId(), detail})
	if err == nil && p.out != nil {
		fmt.Fprintln(p.out, string(text))
	}
}

func (p *plugin) setModes(list string) {
	p.modes = map[string]bool{}
	for _, mode := range strings.Split(list, ",") {
		p.modes[mode] = true
	}
}

func (p *plugin) Configure(_ context.Context, config, runtime, version string) (api.EventMask, error) {
	for _, field := range strings.Fields(config) {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "mode":
			p.setModes(value)
		case "log":
			out, err := os.OpenFile(value, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				return 0, err
			}
			p.out = out
		}
	}
	detail := fmt.Sprintf("%s %s %v %v", runtime, version, p.stub.RegistrationTimeout(), p.stub.RequestTimeout())
	p.log("Configure", nil, nil, detail)
	switch {
	case p.modes["validate"]:
		return 0, nil
	case p.modes["bench"]:
		p.out = nil
		mask := api.EventMask(0)
		mask.Set(api.Event_CREATE_CONTAINER)
		return mask, nil
	}
	// All but validation, which is a duty only for those who want it.
	mask := api.ValidEvents
	mask.Clear(api.Event_VALIDATE_CONTAINER_ADJUSTMENT)
	return mask, nil
}

func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	p.log("Synchronize", nil, nil, fmt.Sprintf("%d %d", len(pods), len(containers)))
	return nil, nil
}

func (p *plugin) Shutdown(context.Context) { p.log("Shutdown", nil, nil, "") }

func (p *plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.log("RunPodSandbox", pod, nil, strings.Join(pod.GetIps(), ","))
	if pod.GetAnnotations()["refuse"] != "" {
		return errors.New("refused by annotation")
	}
	return nil
}

func (p *plugin) UpdatePodSandbox(_ context.Context, pod *api.PodSandbox, overhead, resources *api.LinuxResources) error {
	p.log("UpdatePodSandbox", pod, nil, fmt.Sprintf("%d", resources.GetCpu().GetShares().GetValue()))
	return nil
}

func (p *plugin) PostUpdatePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.log("PostUpdatePodSandbox", pod, nil, "")
	return nil
}

func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.log("StopPodSandbox", pod, nil, "")
	return nil
}

func (p *plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.log("RemovePodSandbox", pod, nil, "")
	return nil
}

func (p *plugin) CreateContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	p.log("CreateContainer", pod, ctr, strconv.Itoa(len(ctr.GetEnv())))
	adjust := &api.ContainerAdjustment{}
	var updates []*api.ContainerUpdate
	if p.modes["adjust"] {
		everything(adjust)
	}
	text := ctr.GetAnnotations()["adjust"]
	if text == "" {
		text = pod.GetAnnotations()["adjust"]
	}
	if text != "" {
		if err := protojson.Unmarshal([]byte(text), adjust); err != nil {
			return nil, nil, err
		}
	}
	if other := ctr.GetAnnotations()["update"]; other != "" {
		update := &api.ContainerUpdate{}
		update.SetContainerId(other)
		update.SetLinuxCPUShares(77)
		updates = append(updates, update)
	}
	if size, err := strconv.Atoi(ctr.GetAnnotations()["answer-bytes"]); err == nil {
		adjust.AddAnnotation("big", strings.Repeat("x", size))
	}
	return adjust, updates, nil
}

// Sets every field there is.
func everything(adjust *api.ContainerAdjustment) {
	adjust.AddAnnotation("annotation", "new")
	adjust.RemoveAnnotation("old-annotation")
	adjust.AddMount(&api.Mount{Destination: "/mnt", Source: "/srv", Type: "bind", Options: []string{"ro"}})
	adjust.RemoveMount("/old-mount")
	adjust.AddEnv("NEW", "value")
	adjust.RemoveEnv("OLD")
	adjust.SetArgs([]string{"run", "it"})
	adjust.AddHooks(&api.Hooks{Poststop: []*api.Hook{{Path: "/hook", Args: []string{"hook"}, Timeout: api.Int(5)}}})
	adjust.AddRlimit("RLIMIT_CORE", 2, 1)
	adjust.AddDevice(&api.LinuxDevice{Path: "/dev/new", Type: "c", Major: 10, Minor: 200, FileMode: api.FileMode(0o600)})
	adjust.RemoveDevice("/dev/old")
	adjust.AddOrReplaceNamespace(&api.LinuxNamespace{Type: "cgroup"})
	adjust.SetLinuxSysctl("net.core.somaxconn", "256")
	adjust.AddLinuxNetDevice("host0", &api.LinuxNetDevice{Name: "in0"})
	adjust.SetLinuxCgroupsPath("/other/path")
	score := 321
	adjust.SetLinuxOomScoreAdj(&score)
	adjust.SetLinuxIOPriority(&api.LinuxIOPriority{Class: api.IOPrioClass_IOPRIO_CLASS_BE, Priority: 6})
	adjust.SetLinuxScheduler(&api.LinuxScheduler{Policy: api.LinuxSchedulerPolicy_SCHED_BATCH, Nice: 4})
	adjust.SetLinuxSeccompPolicy(&api.LinuxSeccomp{DefaultAction: "SCMP_ACT_ERRNO", DefaultErrno: api.UInt32(uint32(38))})
	adjust.SetLinuxMemoryPolicy(api.MpolMode_MPOL_INTERLEAVE, "0-1", api.MpolFlag_MPOL_F_STATIC_NODES)
	adjust.SetLinuxMemoryLimit(1 << 30)
	adjust.SetLinuxMemoryReservation(1 << 29)
	adjust.SetLinuxMemorySwap(1 << 31)
	adjust.SetLinuxMemorySwappiness(10)
	adjust.SetLinuxMemoryDisableOomKiller()
	adjust.SetLinuxMemoryUseHierarchy()
	adjust.SetLinuxCPUShares(512)
	adjust.SetLinuxCPUQuota(50000)
	adjust.SetLinuxCPUPeriod(100000)
	adjust.SetLinuxCPURealtimeRuntime(1000)
	adjust.SetLinuxCPURealtimePeriod(2000)
	adjust.SetLinuxCPUSetCPUs("0-1")
	adjust.SetLinuxCPUSetMems("0")
	adjust.SetLinuxPidLimits(99)
	adjust.AddLinuxHugepageLimit("2MB", 4096)
	adjust.AddLinuxUnified("memory.high", "900")
	adjust.SetLinuxRDTClass("silver")
	adjust.SetLinuxRDTClosID("gold")
	adjust.SetLinuxRDTSchemata([]string{"L3:0=f"})
	adjust.SetLinuxRDTEnableMonitoring(true)
}

func (p *plugin) PostCreateContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	p.log("PostCreateContainer", pod, ctr, "")
	return nil
}

func (p *plugin) StartContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	p.log("StartContainer", pod, ctr, fmt.Sprintf("%d", ctr.GetPid()))
	return nil
}

func (p *plugin) PostStartContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	p.log("PostStartContainer", pod, ctr, "")
	if p.modes["unsolicited"] {
		// From inside the handler, and waiting for it.
		good, bad := &api.ContainerUpdate{}, &api.ContainerUpdate{}
		good.SetContainerId(ctr.GetId())
		good.SetLinuxCPUShares(55)
		bad.SetContainerId(ctr.GetId())
		bad.SetLinuxCPUQuota(13)
		failed, err := p.stub.UpdateContainers([]*api.ContainerUpdate{good})
		p.log("UpdateContainers", pod, ctr, fmt.Sprintf("%d %v", len(failed), err))
		failed, err = p.stub.UpdateContainers([]*api.ContainerUpdate{bad})
		p.log("UpdateContainers", pod, ctr, fmt.Sprintf("%d %v", len(failed), err))
	}
	return nil
}

func (p *plugin) UpdateContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container, resources *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	p.log("UpdateContainer", pod, ctr, fmt.Sprintf("%d", resources.GetCpu().GetShares().GetValue()))
	update := &api.ContainerUpdate{}
	update.SetContainerId(ctr.GetId())
	update.SetLinuxPidLimits(44)
	return []*api.ContainerUpdate{update}, nil
}

func (p *plugin) PostUpdateContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	p.log("PostUpdateContainer", pod, ctr, "")
	return nil
}

func (p *plugin) StopContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) ([]*api.ContainerUpdate, error) {
	p.log("StopContainer", pod, ctr, "")
	return nil, nil
}

func (p *plugin) RemoveContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	p.log("RemoveContainer", pod, ctr, "")
	return nil
}

func (p *plugin) ValidateContainerAdjustment(_ context.Context, request *api.ValidateContainerAdjustmentRequest) error {
	owner, _ := request.GetOwners().AnnotationOwner(request.GetContainer().GetId(), "annotation")
	p.log("ValidateContainerAdjustment", request.GetPod(), request.GetContainer(), owner)
	if request.GetContainer().GetAnnotations()["reject"] != "" {
		return errors.New("rejected by annotation")
	}
	return nil
}

func run() error {
	socket := flag.String("socket", "", "where the runtime listens")
	name := flag.String("name", "", "name of the plugin")
	index := flag.String("idx", "", "index of the plugin")
	modes := flag.String("mode", "", "what to do besides writing lines")
	flag.Parse()

	p := &plugin{out: os.Stdout}
	p.setModes(*modes)
	options := []stub.Option{}
	if *name != "" {
		options = append(options, stub.WithPluginName(*name), stub.WithPluginIdx(*index))
	}
	if *socket != "" {
		options = append(options, stub.WithSocketPath(*socket))
	}
	connection, err := stub.New(p, options...)
	if err != nil {
		return err
	}
	p.stub = connection
	return connection.Run(context.Background())
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "nri-go:", err)
		os.Exit(1)
	}
}
