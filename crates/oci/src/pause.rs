//! The program of a sandbox: it ignores its children, so that the kernel reaps them, and
//! sleeps. Written out as machine code, because a pod needs it without an image, a libc or a
//! file of ours that could be missing.

use crate::facts::Arch;

const HEADER: usize = 64;
const SEGMENT: usize = 56;
/// Where it is loaded; pages may have 64 KiB.
const ADDRESS: u64 = 0x40_0000;
const PAGE: u64 = 0x1_0000;

/// `rt_sigaction(SIGCHLD, ignore, none, 8)`, then `pause()` for ever.
const X86_64: &[u8] = &[
    0xb8, 0x0d, 0x00, 0x00, 0x00, // mov eax, 13
    0xbf, 0x11, 0x00, 0x00, 0x00, // mov edi, 17
    0x48, 0x8d, 0x35, 0x13, 0x00, 0x00, 0x00, // lea rsi, [end]
    0x31, 0xd2, // xor edx, edx
    0x41, 0xba, 0x08, 0x00, 0x00, 0x00, // mov r10d, 8
    0x0f, 0x05, // syscall
    0xb8, 0x22, 0x00, 0x00, 0x00, // mov eax, 34
    0x0f, 0x05, // syscall
    0xeb, 0xf7, // jmp to the mov before
];

/// The same, with `ppoll` of nothing: there is no `pause`.
const AARCH64: &[u32] = &[
    0xd280_10c8, // mov x8, 134
    0xd280_0220, // mov x0, 17
    0x1000_0161, // adr x1, end
    0xd280_0002, // mov x2, 0
    0xd280_0103, // mov x3, 8
    0xd400_0001, // svc 0
    0xd280_0928, // mov x8, 73
    0xd280_0000, // mov x0, 0
    0xd280_0001, // mov x1, 0
    0xd280_0002, // mov x2, 0
    0xd280_0003, // mov x3, 0
    0xd400_0001, // svc 0
    0x17ff_fffa, // b to the seventh
];

/// SIG_IGN, no flags, no restorer, an empty mask.
const IGNORE: [u64; 4] = [1, 0, 0, 0];

/// An executable file for this machine; `None` where nobody has written one.
pub fn pause_program(arch: Arch) -> Option<Vec<u8>> {
    let (machine, code): (u16, Vec<u8>) = match arch {
        Arch::X86_64 => (62, X86_64.to_vec()),
        Arch::Aarch64 => (183, AARCH64.iter().flat_map(|word| word.to_le_bytes()).collect()),
        _ => return None,
    };
    let data = IGNORE.iter().flat_map(|word| word.to_le_bytes());
    let text: Vec<u8> = code.into_iter().chain(data).collect();
    let mut file = header(machine);
    file.extend(segment((HEADER + SEGMENT + text.len()) as u64));
    file.extend(text);
    Some(file)
}

/// Of an ELF file: 64 bits, little-endian, an executable at a fixed address.
fn header(machine: u16) -> Vec<u8> {
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
    bytes.extend([0; 8]);
    bytes.extend(2_u16.to_le_bytes());
    bytes.extend(machine.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend((ADDRESS + (HEADER + SEGMENT) as u64).to_le_bytes());
    bytes.extend((HEADER as u64).to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 0, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    bytes
}

/// The whole file, to be read and executed.
fn segment(len: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(5_u32.to_le_bytes());
    for word in [0, ADDRESS, ADDRESS, len, len, PAGE] {
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::{fs::PermissionsExt, process::ExitStatusExt},
        process::Command,
        time::Duration,
    };

    use super::*;

    #[test]
    fn parts_have_the_sizes_they_say() {
        for arch in [Arch::X86_64, Arch::Aarch64] {
            let file = pause_program(arch).unwrap();
            assert_eq!(header(0).len(), HEADER);
            assert_eq!(segment(0).len(), SEGMENT);
            assert_eq!(file[96..104], (file.len() as u64).to_le_bytes());
        }
        assert_eq!(pause_program(Arch::S390x), None);
    }

    #[test]
    fn it_sleeps_ignoring_its_children_until_it_is_killed() {
        let Some(arch) = Arch::of_machine(std::env::consts::ARCH) else { return };
        let Some(program) = pause_program(arch) else { return };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pause");
        fs::write(&path, program).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o555)).unwrap();
        let mut child = Command::new(&path).spawn().unwrap();
        let ignored = || {
            let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        while ignored() & 1 << 16 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(child.try_wait().unwrap(), None);
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}
