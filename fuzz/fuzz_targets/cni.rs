//! Nothing that a CNI configuration, a CNI program or a template says makes us panic, and
//! what we take from them means the same when it is read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use net::{
    Complaint, IpPreference, SpecVersion,
    conf::NetworkList,
    result::CniResult,
    template::{PodCidrs, Template},
};

fn conf(bytes: &[u8]) {
    let Ok(list) = NetworkList::parse(bytes) else { return };
    assert!(!list.plugins.is_empty());
    for plugin in &list.plugins {
        // Joined to a directory, it stays in there.
        let path = std::path::Path::new("/bin").join(&plugin.program);
        assert_eq!(path.parent(), Some("/bin".as_ref()));
        assert!(!plugin.program.starts_with('.'));
    }
    let stored = serde_json::to_vec(&list).expect("it is JSON already");
    assert_eq!(serde_json::from_slice::<NetworkList>(&stored).expect("reads back"), list);
}

fn result(bytes: &[u8]) {
    for spoken in SpecVersion::ALL {
        let Ok(result) = CniResult::parse(bytes, spoken) else { return };
        let ips = result.pod_ips("eth0", IpPreference::V6);
        assert!(ips.len() <= result.addresses.len());
        let again = CniResult::from_raw(result.raw.clone(), spoken).expect("was one already");
        assert_eq!(again, result);
    }
}

fuzz_target!(|bytes: &[u8]| {
    conf(bytes);
    result(bytes);
    let _ = Complaint::parse(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let cidrs = ["10.0.0.0/8", "fd00::/64"].map(|cidr| cidr.parse().expect("a network"));
        let cidrs = PodCidrs::new(&cidrs).expect("two are some");
        if let Ok(template) = Template::parse(text) {
            let _ = template.render(&cidrs);
        }
        let _ = net::Bandwidth::parse_rate(text);
        if let Ok(cidr) = text.parse::<net::Cidr>() {
            assert_eq!(cidr.to_string().parse(), Ok(cidr));
        }
    }
});
