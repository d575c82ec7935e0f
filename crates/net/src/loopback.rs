//! `lo` of a pod, up without a program: one message to the kernel.

use std::{io, path::Path};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink::SocketAddrNetlink, recv,
    sendto, socket_with,
};
use sys::namespace::{self, Namespace};

use crate::error::NetError;

/// The kernel gives every new namespace its `lo` first, down.
const LO_INDEX: u32 = 1;

const RTM_NEWLINK: u16 = 16;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const IFF_UP: u32 = 1;

/// Header and link message are 16 bytes each.
const REQUEST_LEN: u32 = 32;

/// Brings `lo` up in the namespace at `path`; the kernel then gives it 127.0.0.1 and ::1.
/// Blocks for a moment.
pub(crate) fn up(path: &Path) -> Result<(), NetError> {
    let wrong = || NetError::kernel(path);
    let file = namespace::open(path).map_err(wrong())?;
    if Namespace::of(&file).map_err(wrong())? != Namespace::Network {
        return Err(NetError::Namespace { path: path.to_owned(), why: "is of another kind" });
    }
    let file = std::os::fd::AsFd::as_fd(&file);
    let done = namespace::in_thread(&[file], set_up).map_err(wrong())?;
    done.map_err(NetError::io("bring lo up in", path))
}

fn set_up() -> io::Result<()> {
    // Protocol 0 is that of routes and links.
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    sendto(&socket, &request(), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; 256];
    let (read, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    acknowledged(&answer[..read])
}

fn request() -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(REQUEST_LEN.to_ne_bytes());
    bytes.extend(RTM_NEWLINK.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    bytes.extend(1_u32.to_ne_bytes()); // sequence
    bytes.extend(0_u32.to_ne_bytes()); // port: the kernel knows
    bytes.extend([0; 4]); // any family, type as it is
    bytes.extend(LO_INDEX.to_ne_bytes());
    bytes.extend(IFF_UP.to_ne_bytes()); // flags,
    bytes.extend(IFF_UP.to_ne_bytes()); // and which of them are meant
    bytes
}

/// The kernel answers with an error message, and 0 in it is success.
fn acknowledged(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let error = answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, error) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(error)) => {
            Err(io::Error::from_raw_os_error(error.saturating_neg()))
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is none")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_has_the_length_it_says() {
        assert_eq!(request().len(), REQUEST_LEN as usize);
    }

    #[test]
    fn answers() {
        let answer = |error: i32| {
            let mut bytes = vec![0; 36];
            bytes[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
            bytes[16..20].copy_from_slice(&error.to_ne_bytes());
            acknowledged(&bytes)
        };
        answer(0).unwrap();
        assert_eq!(answer(-1).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(acknowledged(&[]).is_err() && acknowledged(&[0; 36]).is_err());
    }

    #[test]
    fn other_files_are_refused() {
        assert!(matches!(up(Path::new("/dev/null")), Err(NetError::Kernel { .. })));
        let other = up(Path::new("/proc/self/ns/uts"));
        assert!(matches!(other, Err(NetError::Namespace { .. })));
    }
}
