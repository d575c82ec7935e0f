//! Pseudo terminals.

use std::os::fd::{AsFd, OwnedFd};

use rustix::{
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcgetwinsize, tcsetwinsize},
};

use crate::error::{Result, to};

/// Both ends of a terminal: we hold `master`, the process gets `terminal`.
#[derive(Debug)]
pub struct Pty {
    pub master: OwnedFd,
    pub terminal: OwnedFd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub rows: u16,
    pub columns: u16,
}

impl Pty {
    /// The terminal end is opened through the master, not by name: right in any mount
    /// namespace. Neither end becomes our controlling terminal.
    pub fn open() -> Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).map_err(to("open a pseudo terminal"))?;
        grantpt(&master).map_err(to("grant a pseudo terminal"))?;
        unlockpt(&master).map_err(to("unlock a pseudo terminal"))?;
        let terminal =
            ioctl_tiocgptpeer(&master, flags).map_err(to("open the peer of a pseudo terminal"))?;
        Ok(Self { master, terminal })
    }
}

/// The process in front gets SIGWINCH if this changes anything.
pub fn resize(terminal: impl AsFd, window: Window) -> Result<()> {
    let size = Winsize { ws_row: window.rows, ws_col: window.columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).map_err(to("set the terminal's window size"))
}

pub fn window(terminal: impl AsFd) -> Result<Window> {
    let size = tcgetwinsize(terminal).map_err(to("ask the terminal's window size"))?;
    Ok(Window { rows: size.ws_row, columns: size.ws_col })
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read, Write},
    };

    use super::*;

    #[test]
    fn what_is_typed_arrives_and_the_size_is_shared() {
        let Pty { master, terminal } = Pty::open().unwrap();
        resize(&master, Window { rows: 40, columns: 132 }).unwrap();
        assert_eq!(window(&terminal).unwrap(), Window { rows: 40, columns: 132 });

        let (mut master, mut terminal) = (File::from(master), File::from(terminal));
        master.write_all(b"typed\n").unwrap();
        let mut line = [0; 16];
        let len = terminal.read(&mut line).unwrap();
        assert_eq!(&line[..len], b"typed\n");
    }
}
