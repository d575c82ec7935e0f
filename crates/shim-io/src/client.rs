//! One attached client.
//!
//! ```text
//!   Greeting ──Hello──> Attached ──end of output, lagged──> Leaving ──all sent, or time──> gone
//!       └──refused──────────────────────────────────────────^
//! ```
//!
//! A client that reads, if only slower than its container writes, is kept: its container is
//! read no faster. One that makes no room for a second is cut off.
//!
//! **Invariant:** at most [`MOST`] bytes wait for a client, and they are whole frames but
//! for the one that is on its way.

use std::{
    io::{self, IoSlice, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use api_shim::attach::{self, Channel, HEADER_LEN, Hello, MAX_FRAME};
use tokio::time::Instant;

/// From here on its container waits for it.
const ROOM: usize = 256 << 10;
/// The last words of a container are read without waiting: two pipes full, and some.
const MOST: usize = 1 << 20;
/// How long a container waits for a client that makes no room.
const GRACE: Duration = Duration::from_secs(1);
/// How long one that is to leave may take to read its last bytes.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Client {
    stream: UnixStream,
    phase: Phase,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    full_since: Option<Instant>,
    /// False once the client has ended its own side; it may still listen.
    pub(crate) hears: bool,
}

#[derive(Debug)]
enum Phase {
    Greeting,
    Attached(Hello),
    Leaving { until: Instant },
}

/// What a client wants.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Join(Hello),
    Type(Vec<u8>),
    EndInput,
}

/// The connection is of no use any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gone;

impl Client {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (incoming, outgoing) = (Vec::new(), Vec::new());
        let (phase, full_since) = (Phase::Greeting, None);
        Ok(Self { stream, phase, incoming, outgoing, full_since, hears: true })
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// The container it is attached to.
    pub(crate) fn hello(&self) -> Option<&Hello> {
        match &self.phase {
            Phase::Attached(hello) => Some(hello),
            _ => None,
        }
    }

    /// When to look at it again: to cut it off, or to give up on it.
    pub(crate) fn until(&self) -> Option<Instant> {
        match self.phase {
            Phase::Leaving { until } => Some(until),
            _ => self.full_since.map(|since| since + GRACE),
        }
    }

    /// Its container is not to be read now.
    pub(crate) fn is_full(&self) -> bool {
        self.full_since.is_some()
    }

    /// To be called when its time has come.
    pub(crate) fn overdue(&mut self) -> Result<(), Gone> {
        match self.phase {
            Phase::Leaving { .. } => Err(Gone),
            _ => {
                self.cut_off();
                Ok(())
            }
        }
    }

    /// Reads once and returns what is complete by that.
    pub(crate) fn hear(&mut self, buffer: &mut [u8]) -> Result<Vec<Wish>, Gone> {
        match self.stream.read(buffer) {
            Ok(0) => {
                self.hears = false;
                return Ok(vec![Wish::EndInput]);
            }
            Ok(len) => self.incoming.extend_from_slice(&buffer[..len]),
            Err(e) if is_passing(&e) => return Ok(Vec::new()),
            Err(_) => return Err(Gone),
        }
        let mut wishes = Vec::new();
        while let Some(wish) = self.next_wish()? {
            wishes.push(wish);
        }
        Ok(wishes)
    }

    fn next_wish(&mut self) -> Result<Option<Wish>, Gone> {
        let Some(&header) = self.incoming.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let (channel, len) = attach::parse(header).map_err(|_| Gone)?;
        if self.incoming.len() < HEADER_LEN + len {
            return Ok(None);
        }
        let body: Vec<u8> = self.incoming.drain(..HEADER_LEN + len).skip(HEADER_LEN).collect();
        match (channel, &self.phase) {
            (Channel::Hello, Phase::Greeting) => {
                let hello = serde_json::from_slice(&body).map_err(|_| Gone)?;
                Ok(Some(Wish::Join(hello)))
            }
            (Channel::Stdin, Phase::Greeting) => Err(Gone),
            (Channel::Stdin, _) if body.is_empty() => Ok(Some(Wish::EndInput)),
            (Channel::Stdin, _) => Ok(Some(Wish::Type(body))),
            _ => Err(Gone),
        }
    }

    pub(crate) fn welcome(&mut self, hello: Hello) -> Result<(), Gone> {
        self.phase = Phase::Attached(hello);
        self.send(Channel::Reply, &[])
    }

    pub(crate) fn refuse(&mut self, why: &str) -> Result<(), Gone> {
        self.send(Channel::Reply, why.as_bytes())?;
        self.leave();
        Ok(())
    }

    /// The container's output has ended.
    pub(crate) fn end(&mut self) -> Result<(), Gone> {
        self.send(Channel::End, &[])?;
        self.leave();
        Ok(())
    }

    /// Output of its container. Too much of it, and the client is told and left alone.
    pub(crate) fn show(&mut self, channel: Channel, bytes: &[u8]) -> Result<(), Gone> {
        if self.outgoing.len() + bytes.len() > MOST {
            self.cut_off();
            return Ok(());
        }
        bytes.chunks(MAX_FRAME).try_for_each(|part| self.send(channel, part))?;
        if self.outgoing.len() > ROOM {
            self.full_since.get_or_insert_with(Instant::now);
        }
        Ok(())
    }

    fn cut_off(&mut self) {
        self.outgoing.extend_from_slice(&attach::header(Channel::Lagged, 0));
        self.leave();
    }

    fn leave(&mut self) {
        self.full_since = None;
        self.phase = Phase::Leaving { until: Instant::now() + PATIENCE };
    }

    fn send(&mut self, channel: Channel, bytes: &[u8]) -> Result<(), Gone> {
        let header = attach::header(channel, bytes.len());
        let mut sent = 0;
        if self.outgoing.is_empty() {
            let slices = [IoSlice::new(&header), IoSlice::new(bytes)];
            sent = match self.stream.write_vectored(&slices) {
                Ok(len) => len,
                Err(e) if is_passing(&e) => 0,
                Err(_) => return Err(Gone),
            };
        }
        self.outgoing.extend_from_slice(header.get(sent..).unwrap_or_default());
        let of_bytes = sent.saturating_sub(HEADER_LEN);
        self.outgoing.extend_from_slice(&bytes[of_bytes..]);
        Ok(())
    }

    /// Sends what waits. `Gone` also for one that has left with its last byte.
    pub(crate) fn flush(&mut self) -> Result<(), Gone> {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(len) => drop(self.outgoing.drain(..len)),
                Err(e) if is_passing(&e) => {
                    if self.outgoing.len() + MAX_FRAME <= ROOM {
                        self.full_since = None;
                    }
                    return Ok(());
                }
                Err(_) => return Err(Gone),
            }
        }
        self.full_since = None;
        // Bursts are rare; their memory need not stay.
        self.outgoing = Vec::new();
        match self.phase {
            Phase::Leaving { .. } => Err(Gone),
            _ => Ok(()),
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Client, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (Client::new(ours).unwrap(), theirs)
    }

    fn hello() -> Hello {
        Hello { id: "c".to_owned(), stdin: true, stdout: true, stderr: true }
    }

    fn frame(channel: Channel, bytes: &[u8]) -> Vec<u8> {
        [&attach::header(channel, bytes.len())[..], bytes].concat()
    }

    fn read_all(stream: &mut UnixStream) -> Vec<u8> {
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got);
        got
    }

    #[test]
    fn a_client_says_hello_types_and_ends() {
        let (mut client, mut theirs) = pair();
        let said = serde_json::to_vec(&hello()).unwrap();
        let all = [frame(Channel::Hello, &said), frame(Channel::Stdin, b"hi")].concat();
        theirs.write_all(&all[..all.len() - 1]).unwrap();
        let mut buffer = [0; 1024];
        assert_eq!(client.hear(&mut buffer), Ok(vec![Wish::Join(hello())]));
        client.welcome(hello()).unwrap();
        theirs.write_all(&all[all.len() - 1..]).unwrap();
        assert_eq!(client.hear(&mut buffer), Ok(vec![Wish::Type(b"hi".to_vec())]));
        theirs.write_all(&frame(Channel::Stdin, b"")).unwrap();
        assert_eq!(client.hear(&mut buffer), Ok(vec![Wish::EndInput]));
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.hear(&mut buffer), Ok(vec![Wish::EndInput]));
        assert!(!client.hears);
        assert_eq!(read_all(&mut theirs), frame(Channel::Reply, b""));
    }

    #[test]
    fn nonsense_and_typing_before_the_hello_end_the_connection() {
        for bytes in [frame(Channel::Stdin, b"x"), frame(Channel::Hello, b"{"), vec![9; 9]] {
            let (mut client, mut theirs) = pair();
            theirs.write_all(&bytes).unwrap();
            assert_eq!(client.hear(&mut [0; 64]), Err(Gone), "{bytes:?}");
        }
    }

    #[test]
    fn one_that_reads_late_has_its_container_wait() {
        let (mut client, mut theirs) = pair();
        client.welcome(hello()).unwrap();
        while !client.is_full() {
            client.show(Channel::Stdout, &[b'x'; 4096]).unwrap();
        }
        assert!(client.until().is_some_and(|until| until > Instant::now()));
        while client.is_full() {
            assert!(!read_all(&mut theirs).is_empty());
            client.flush().unwrap();
        }
        assert_eq!(client.until(), None);
    }

    #[test]
    fn one_that_makes_no_room_is_cut_off_and_then_given_up() {
        let (mut client, _theirs) = pair();
        client.welcome(hello()).unwrap();
        while !client.is_full() {
            client.show(Channel::Stdout, &[b'x'; 4096]).unwrap();
        }
        assert_eq!(client.overdue(), Ok(()));
        assert_eq!((client.is_full(), client.hello()), (false, None));
        assert_eq!(client.overdue(), Err(Gone));
    }

    #[test]
    fn more_than_the_most_is_cut_off_with_a_word() {
        let (mut client, mut theirs) = pair();
        client.welcome(hello()).unwrap();
        let part = [b'x'; 32 << 10];
        let mut shown = 0;
        while client.hello().is_some() {
            client.show(Channel::Stdout, &part).unwrap();
            shown += 1;
            assert!(client.outgoing.len() <= MOST + 2 * HEADER_LEN, "bounded");
        }
        let mut got = Vec::new();
        while client.flush() == Ok(()) {
            got.extend(read_all(&mut theirs));
        }
        drop(client);
        got.extend(read_all(&mut theirs));
        let whole = (shown - 1) * (part.len() + HEADER_LEN);
        assert_eq!(got.len(), HEADER_LEN + whole + HEADER_LEN);
        assert_eq!(got[got.len() - HEADER_LEN..], frame(Channel::Lagged, b""));
    }

    #[test]
    fn the_end_follows_the_last_bytes() {
        let (mut client, mut theirs) = pair();
        client.welcome(hello()).unwrap();
        client.show(Channel::Stderr, b"last").unwrap();
        client.end().unwrap();
        assert_eq!(client.flush(), Err(Gone));
        drop(client);
        let want =
            [frame(Channel::Reply, b""), frame(Channel::Stderr, b"last"), frame(Channel::End, b"")];
        assert_eq!(read_all(&mut theirs), want.concat());
    }
}
