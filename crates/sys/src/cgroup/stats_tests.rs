use std::{fs, path::Path};

use super::*;
use crate::cgroup::{Hierarchy, Layout, LayoutMode};

/// A group made of plain files: reading does not care what file system they are on.
struct Fake {
    dir: tempfile::TempDir,
    layout: Layout,
}

impl Fake {
    fn new(version: Version, controllers: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy { version, mount: dir.path().to_owned(), root: "/".into() };
        let mode = if version == Version::V2 { LayoutMode::V2 } else { LayoutMode::V1 };
        let unified = (version == Version::V2).then(|| hierarchy.clone());
        let controllers =
            controllers.iter().map(|name| ((*name).to_owned(), hierarchy.clone())).collect();
        Self { dir, layout: Layout { mode, controllers, named: Vec::new(), unified } }
    }

    fn file(self, name: &str, text: &str) -> Self {
        fs::write(self.dir.path().join(name), text).unwrap();
        self
    }

    fn open(&self) -> Cgroup {
        Cgroup::open(&self.layout, Path::new("/")).unwrap().unwrap()
    }
}

const STAT_V1: &str = "cache 13434880\nrss 10035200\nmapped_file 10145792\npgfault 51239\n\
    pgmajfault 1\ninactive_file 16384\nhierarchical_memory_limit 9223372036854771712\n\
    total_cache 1156952064\ntotal_rss 516759552\ntotal_mapped_file 168087552\n\
    total_pgfault 7835635\ntotal_pgmajfault 2392\ntotal_inactive_file 597741568\n";

#[test]
fn memory_v1() {
    let fake = Fake::new(Version::V1, &["memory"])
        .file("memory.usage_in_bytes", "1700000000\n")
        .file("memory.max_usage_in_bytes", "1800000000\n")
        .file("memory.limit_in_bytes", "9223372036854771712\n")
        .file("memory.memsw.usage_in_bytes", "1700004096\n")
        .file("memory.memsw.limit_in_bytes", "9223372036854771712\n")
        .file("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
        .file("memory.stat", STAT_V1);
    let want = Memory {
        usage: 1_700_000_000,
        working_set: 1_700_000_000 - 597_741_568,
        limit: None,
        peak: Some(1_800_000_000),
        swap_usage: Some(4096),
        swap_limit: None,
        anon: 516_759_552,
        file: 1_156_952_064,
        mapped_file: 168_087_552,
        inactive_file: 597_741_568,
        active_file: 0,
        page_faults: 7_835_635,
        major_page_faults: 2392,
    };
    assert_eq!(fake.open().memory().unwrap(), Some(want));
    assert_eq!(fake.open().oom_kills().unwrap(), Some(3));
    assert_eq!(fake.open().memory_stat().unwrap().unwrap()["total_rss"], 516_759_552);
}

#[test]
fn memory_v1_swap_limit_is_the_difference() {
    let fake = Fake::new(Version::V1, &["memory"])
        .file("memory.usage_in_bytes", "100\n")
        .file("memory.limit_in_bytes", "4096\n")
        .file("memory.memsw.limit_in_bytes", "12288\n")
        .file("memory.stat", STAT_V1);
    let memory = fake.open().memory().unwrap().unwrap();
    assert_eq!((memory.limit, memory.swap_limit), (Some(4096), Some(8192)));
    assert_eq!((memory.swap_usage, memory.peak), (None, None));
    // The cache of the groups below may be more than our own reading of usage.
    assert_eq!(memory.working_set, 0);
}

#[test]
fn memory_v2() {
    let fake = Fake::new(Version::V2, &["memory"])
        .file("memory.current", "10485760\n")
        .file("memory.max", "20971520\n")
        .file("memory.swap.current", "0\n")
        .file("memory.swap.max", "max\n")
        .file("memory.events", "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n")
        .file(
            "memory.stat",
            "anon 4194304\nfile 6291456\nkernel_stack 65536\nfile_mapped 1048576\n\
             inactive_file 2097152\nactive_file 4194304\npgfault 900\npgmajfault 4\n",
        );
    let want = Memory {
        usage: 10_485_760,
        working_set: 8_388_608,
        limit: Some(20_971_520),
        peak: None,
        swap_usage: Some(0),
        swap_limit: None,
        anon: 4_194_304,
        file: 6_291_456,
        mapped_file: 1_048_576,
        inactive_file: 2_097_152,
        active_file: 4_194_304,
        page_faults: 900,
        major_page_faults: 4,
    };
    assert_eq!(fake.open().memory().unwrap(), Some(want));
    assert_eq!(fake.open().oom_kills().unwrap(), Some(1));
}

#[test]
fn cpu_in_nanoseconds_on_both() {
    let v1 = Fake::new(Version::V1, &["cpu", "cpuacct"])
        .file("cpuacct.usage", "123456789\n")
        .file("cpuacct.usage_user", "100000000\n")
        .file("cpuacct.usage_sys", "23456789\n")
        .file("cpu.stat", "nr_periods 10\nnr_throttled 2\nthrottled_time 5000000\n");
    let v2 = Fake::new(Version::V2, &["cpu"]).file(
        "cpu.stat",
        "usage_usec 123456\nuser_usec 100000\nsystem_usec 23456\nnr_periods 10\n\
         nr_throttled 2\nthrottled_usec 5000\n",
    );
    let (v1, v2) = (v1.open().cpu().unwrap().unwrap(), v2.open().cpu().unwrap().unwrap());
    assert_eq!((v1.usage_ns, v2.usage_ns), (123_456_789, 123_456_000));
    assert_eq!((v1.system_ns, v2.system_ns), (Some(23_456_789), Some(23_456_000)));
    assert_eq!(v1.throttled_ns, v2.throttled_ns);
    assert_eq!((v1.periods, v1.throttled_periods), (v2.periods, v2.throttled_periods));
}

#[test]
fn io_on_both() {
    let v1 = Fake::new(Version::V1, &["blkio"])
        .file("blkio.bfq.io_service_bytes_recursive", "Total 0\n")
        .file("blkio.bfq.io_serviced_recursive", "Total 0\n")
        .file(
            "blkio.throttle.io_service_bytes_recursive",
            "254:0 Read 4096\n254:0 Write 8192\nTotal 12288\n",
        )
        .file("blkio.throttle.io_serviced_recursive", "254:0 Read 1\n254:0 Write 2\nTotal 3\n");
    let v2 = Fake::new(Version::V2, &["io"])
        .file("io.stat", "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n");
    let device = IoDevice {
        read_bytes: 4096,
        write_bytes: 8192,
        reads: 1,
        writes: 2,
        ..IoDevice::default()
    };
    let want = Io { devices: [((254, 0), device)].into() };
    assert_eq!(v1.open().io().unwrap(), Some(want.clone()));
    assert_eq!(v2.open().io().unwrap(), Some(want));
}

#[test]
fn pids_on_both() {
    for version in [Version::V1, Version::V2] {
        let fake =
            Fake::new(version, &["pids"]).file("pids.current", "5\n").file("pids.max", "max\n");
        assert_eq!(fake.open().pids_usage().unwrap(), Some(Pids { current: 5, limit: None }));
        let fake = fake.file("pids.max", "100\n");
        assert_eq!(fake.open().pids_usage().unwrap(), Some(Pids { current: 5, limit: Some(100) }));
    }
}

#[test]
fn hugetlb_on_both() {
    let v1 = Fake::new(Version::V1, &["hugetlb"])
        .file("hugetlb.2MB.usage_in_bytes", "2097152\n")
        .file("hugetlb.2MB.rsvd.usage_in_bytes", "9\n")
        .file("hugetlb.2MB.limit_in_bytes", "9223372036854771712\n")
        .file("hugetlb.2MB.failcnt", "4\n");
    let v2 = Fake::new(Version::V2, &["hugetlb"])
        .file("hugetlb.2MB.current", "2097152\n")
        .file("hugetlb.2MB.rsvd.current", "9\n")
        .file("hugetlb.2MB.max", "max\n")
        .file("hugetlb.2MB.events", "max 4\n");
    let want = Hugetlb {
        page_size: "2MB".into(),
        usage: 2_097_152,
        limit: None,
        failures: Some(4),
        peak: None,
    };
    assert_eq!(v1.open().hugetlb().unwrap(), Some(vec![want.clone()]));
    let v1 = v1.file("hugetlb.2MB.max_usage_in_bytes", "4194304\n");
    assert_eq!(v1.open().hugetlb().unwrap().unwrap()[0].peak, Some(4_194_304));
    assert_eq!(v2.open().hugetlb().unwrap(), Some(vec![want]));
}

#[test]
fn pressure_is_on_the_v2_side() {
    let line = "some avg10=1.50 avg60=0.00 avg300=0.00 total=12\n";
    let fake = Fake::new(Version::V2, &[]).file("memory.pressure", line);
    let cgroup = fake.open();
    assert_eq!(cgroup.memory_pressure().unwrap().unwrap().some.total_us, 12);
    assert_eq!(cgroup.cpu_pressure().unwrap(), None);
    let v1 = Fake::new(Version::V1, &["memory"]).file("memory.pressure", line);
    assert_eq!(v1.open().memory_pressure().unwrap(), None);
}

#[test]
fn what_is_not_there_is_none() {
    let bare = Fake::new(Version::V2, &["cpu", "memory", "pids", "io", "hugetlb"]);
    let cgroup = bare.open();
    assert_eq!(cgroup.cpu().unwrap(), None);
    assert_eq!(cgroup.memory().unwrap(), None);
    assert_eq!(cgroup.oom_kills().unwrap(), None);
    assert_eq!(cgroup.pids_usage().unwrap(), None);
    assert_eq!(cgroup.io().unwrap(), None);
    assert_eq!(cgroup.hugetlb().unwrap(), Some(vec![]));
    let none = Fake::new(Version::V1, &["devices"]);
    let cgroup = none.open();
    assert_eq!((cgroup.memory().unwrap(), cgroup.cpu().unwrap()), (None, None));
    assert_eq!((cgroup.io().unwrap(), cgroup.hugetlb().unwrap()), (None, None));
    assert!(cgroup.write("memory", "memory.max", "1").is_err());
    assert!(Cgroup::open(&none.layout, Path::new("/absent")).unwrap().is_none());
}

#[test]
fn what_the_kernel_took_and_refused_on_both() {
    let v1 = Fake::new(Version::V1, &["memory"])
        .file("memory.failcnt", "3\n")
        .file("memory.kmem.usage_in_bytes", "4096\n");
    let v2 = Fake::new(Version::V2, &["memory"])
        .file("memory.events", "low 0\nhigh 0\nmax 3\noom 0\n")
        .file("memory.stat", "anon 1\nkernel 4096\n");
    let want = MemoryDetails { failures: Some(3), kernel: Some(4096) };
    assert_eq!(v1.open().memory_details().unwrap(), Some(want));
    assert_eq!(v2.open().memory_details().unwrap(), Some(want));
    let old = Fake::new(Version::V2, &["memory"]).file("memory.stat", "anon 1\n");
    assert_eq!(old.open().memory_details().unwrap(), Some(MemoryDetails::default()));
    assert_eq!(Fake::new(Version::V2, &["cpu"]).open().memory_details().unwrap(), None);
}

#[test]
fn the_cpu_time_alone() {
    let v1 = Fake::new(Version::V1, &["cpu", "cpuacct"]).file("cpuacct.usage", "123456789\n");
    let v2 = Fake::new(Version::V2, &["cpu"]).file("cpu.stat", "usage_usec 123456\n");
    assert_eq!(v1.open().cpu_usage_ns().unwrap(), Some(123_456_789));
    assert_eq!(v2.open().cpu_usage_ns().unwrap(), Some(123_456_000));
}
