//! The loop of the log thread.

use std::{
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixListener,
    },
    sync::{
        Arc,
        mpsc::{Receiver, TryRecvError},
    },
};

use api_shim::attach::{Channel, Hello};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use tokio::time::Instant;

use crate::{
    Command, Source, Stream, Warn,
    client::{Client, Gone, Wish},
    source::Got,
};

/// The first reads are small, because most containers say little and memory once touched
/// stays; a stream that fills them is worth large ones.
const SMALL_READ: usize = 4 << 10;
const LARGE_READ: usize = 64 << 10;
/// Reads from one stream before the others have their turn.
const TURN: usize = 8;
/// What a container may have written before its end: pipes hold less.
const LAST_READS: usize = 256;
/// More who watch one pod are a mistake somewhere.
const MAX_CLIENTS: usize = 32;

#[derive(Debug)]
pub(crate) struct Pump {
    commands: Receiver<Command>,
    wake: Arc<OwnedFd>,
    listener: UnixListener,
    warn: Warn,
    sources: Vec<Source>,
    clients: Vec<Client>,
    buffer: Vec<u8>,
    text: Vec<u8>,
}

/// What a descriptor is of.
#[derive(Clone, Copy, Debug)]
enum Token {
    Wake,
    Listener,
    Output { source: usize, output: usize },
    Input { source: usize },
    Client { client: usize },
}

impl Pump {
    pub(crate) fn new(
        commands: Receiver<Command>,
        wake: Arc<OwnedFd>,
        listener: UnixListener,
        warn: Warn,
    ) -> Self {
        let (sources, clients) = (Vec::new(), Vec::new());
        // The buffers come with the first container.
        let (buffer, text) = (Vec::new(), Vec::new());
        Self { commands, wake, listener, warn, sources, clients, buffer, text }
    }

    pub(crate) fn run(mut self) {
        loop {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(Errno::INTR) => continue,
                Err(error) => return (self.warn)(format_args!("log thread: poll: {error}")),
            };
            // From the last: what ends is removed, and those before it keep their places.
            for (token, flags) in ready.into_iter().rev() {
                match token {
                    Token::Output { source, output } => self.read_output(source, output),
                    Token::Input { source } => self.sources[source].flush_input(),
                    Token::Client { client } => self.serve(client, flags),
                    Token::Listener => self.accept(),
                    Token::Wake => {
                        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                    }
                }
            }
            self.drop_late_clients();
            if !self.obey() {
                return;
            }
        }
    }

    // === waiting ===

    fn wait(&self) -> Result<Vec<(Token, PollFlags)>, Errno> {
        let mut tokens = vec![Token::Wake, Token::Listener];
        let mut fds = vec![
            PollFd::new(&*self.wake, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        for (source, of) in self.sources.iter().enumerate() {
            let waits = self.clients_of(&of.id).any(Client::is_full);
            for (output, fd) in of.output_fds().enumerate().filter(|_| !waits) {
                tokens.push(Token::Output { source, output });
                fds.push(PollFd::new(fd, PollFlags::IN));
            }
            if let Some(input) = of.input().filter(|input| input.is_waiting()) {
                tokens.push(Token::Input { source });
                fds.push(PollFd::new(input.fd(), PollFlags::OUT));
            }
        }
        for (client, of) in self.clients.iter().enumerate() {
            tokens.push(Token::Client { client });
            fds.push(PollFd::from_borrowed_fd(of.stream().as_fd(), self.interest(of)));
        }
        poll(&mut fds, self.patience().as_ref())?;
        let ready = tokens.into_iter().zip(fds.iter().map(PollFd::revents));
        Ok(ready.filter(|(_, flags)| !flags.is_empty()).collect())
    }

    fn interest(&self, client: &Client) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::OUT, client.has_unsent());
        // Who types into a container that does not read waits with it.
        let full = client.hello().and_then(|hello| self.find(&hello.id)).is_some_and(|source| {
            self.sources[source].input().is_some_and(crate::input::Input::is_full)
        });
        flags.set(PollFlags::IN, client.hears && !full);
        flags
    }

    fn patience(&self) -> Option<Timespec> {
        let until = self.clients.iter().filter_map(Client::until).min()?;
        let left = until.saturating_duration_since(Instant::now());
        Some(Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        })
    }

    fn clients_of(&self, id: &str) -> impl Iterator<Item = &Client> {
        self.clients.iter().filter(move |one| one.hello().is_some_and(|hello| hello.id == id))
    }

    fn drop_late_clients(&mut self) {
        if self.clients.iter().any(|client| client.until().is_some()) {
            let now = Instant::now();
            self.clients.retain_mut(|client| match client.until() {
                Some(until) if until <= now => client.overdue() != Err(Gone),
                _ => true,
            });
        }
    }

    // === output ===

    fn read_output(&mut self, source: usize, output: usize) {
        for _ in 0..TURN {
            match self.read_once(source, output) {
                // A read that was not filled has emptied the pipe.
                Got::Bytes(_, len) if len == self.buffer.len() => {
                    self.buffer.resize(LARGE_READ, 0);
                }
                _ => return,
            }
        }
    }

    fn read_once(&mut self, source: usize, output: usize) -> Got {
        let got = self.sources[source].read(output, &mut self.buffer, &mut self.text);
        match got {
            Got::Nothing => {}
            Got::End => {
                if self.sources[source].has_ended() {
                    self.end_clients(source);
                }
            }
            Got::Bytes(stream, len) => self.show(source, stream, len),
        }
        got
    }

    fn show(&mut self, source: usize, stream: Stream, len: usize) {
        let (id, bytes) = (&self.sources[source].id, &self.buffer[..len]);
        self.clients.retain_mut(|client| {
            let wants = client.hello().filter(|hello| hello.id == *id).map(|hello| match stream {
                Stream::Stdout => (Channel::Stdout, hello.stdout),
                Stream::Stderr => (Channel::Stderr, hello.stderr),
            });
            match wants {
                Some((channel, true)) => client.show(channel, bytes) != Err(Gone),
                _ => true,
            }
        });
    }

    fn end_clients(&mut self, source: usize) {
        let id = &self.sources[source].id;
        self.clients.retain_mut(|client| match client.hello() {
            Some(hello) if hello.id == *id => {
                // Nothing waits: then it can go at once.
                client.end() != Err(Gone) && client.flush() != Err(Gone)
            }
            _ => true,
        });
    }

    // === clients ===

    fn accept(&mut self) {
        let Ok((stream, _)) = self.listener.accept() else { return };
        let Ok(mut client) = Client::new(stream) else { return };
        self.buffer.resize(self.buffer.len().max(SMALL_READ), 0);
        if self.clients.len() >= MAX_CLIENTS {
            let _ = client.refuse("too many clients are attached");
            return;
        }
        self.clients.push(client);
    }

    fn serve(&mut self, client: usize, flags: PollFlags) {
        let mut state = Ok(());
        if flags.contains(PollFlags::OUT) {
            state = self.clients[client].flush();
        }
        if state.is_ok() && flags.contains(PollFlags::IN) {
            state = self.hear(client);
        }
        // Both sides are closed; what it said before is read by now, or will not be.
        if flags.intersects(PollFlags::HUP | PollFlags::ERR) && !flags.contains(PollFlags::IN) {
            state = Err(Gone);
        }
        if state == Err(Gone) {
            self.end_input(client);
            self.clients.remove(client);
        }
    }

    fn hear(&mut self, client: usize) -> Result<(), Gone> {
        for wish in self.clients[client].hear(&mut self.buffer)? {
            match wish {
                Wish::Join(hello) => self.join(client, hello)?,
                Wish::Type(bytes) => {
                    if let Some(source) = self.typed_into(client) {
                        self.sources[source].type_in(&bytes);
                    }
                }
                Wish::EndInput => self.end_input(client),
            }
        }
        Ok(())
    }

    fn join(&mut self, client: usize, hello: Hello) -> Result<(), Gone> {
        let Some(source) = self.find(&hello.id) else {
            self.clients[client].refuse(&format!("no container {:?}", hello.id))?;
            return self.clients[client].flush();
        };
        let ended = self.sources[source].has_ended();
        self.clients[client].welcome(hello)?;
        if ended {
            self.clients[client].end()?;
            self.clients[client].flush()?;
        }
        Ok(())
    }

    fn end_input(&mut self, client: usize) {
        if let Some(source) = self.typed_into(client)
            && self.sources[source].stdin_once
        {
            self.sources[source].close_input();
        }
    }

    fn typed_into(&self, client: usize) -> Option<usize> {
        let hello = self.clients[client].hello().filter(|hello| hello.stdin)?;
        self.find(&hello.id)
    }

    fn find(&self, id: &str) -> Option<usize> {
        self.sources.iter().position(|source| source.id == id)
    }

    // === commands ===

    /// False: this is the end.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Stop { reply }) => {
                    self.finish_all();
                    let _ = reply.send(());
                    return false;
                }
                Ok(command) => self.carry_out(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => {
                    self.finish_all();
                    return false;
                }
            }
        }
    }

    /// What was read is not in the pipes any more: the next reader would miss it.
    fn finish_all(&mut self) {
        for source in std::mem::take(&mut self.sources) {
            source.finish(&mut self.text);
        }
    }

    fn carry_out(&mut self, command: Command) {
        // Who asked may have given up waiting for a reply.
        match command {
            Command::Add(source) => {
                self.buffer.resize(self.buffer.len().max(SMALL_READ), 0);
                self.sources.push(*source);
            }
            Command::Drain { id, reply } => {
                let errors = self.find(&id).map_or(0, |source| self.drain(source));
                let _ = reply.send(errors);
            }
            Command::Finish { id, reply } => {
                let errors = self.find(&id).map_or(0, |source| self.finish(source));
                let _ = reply.send(errors);
            }
            Command::Ended { id, reply } => match self.find(&id) {
                Some(source) => self.sources[source].tell_end(reply),
                None => drop(reply.send(())),
            },
            Command::Reopen { id, reply } => {
                let source = self.find(&id);
                let _ = reply.send(source.map_or(Ok(()), |at| self.sources[at].reopen_log()));
            }
            // Obeyed before it comes here.
            Command::Stop { reply } => drop(reply),
            Command::CloseStdin { id } => {
                if let Some(source) = self.find(&id) {
                    self.sources[source].close_input();
                }
            }
        }
    }

    fn drain(&mut self, source: usize) -> u64 {
        for output in (0..self.sources[source].outputs()).rev() {
            for _ in 0..LAST_READS {
                match self.read_once(source, output) {
                    Got::Bytes(..) => {}
                    Got::Nothing | Got::End => break,
                }
            }
        }
        self.sources[source].log_errors()
    }

    fn finish(&mut self, source: usize) -> u64 {
        self.drain(source);
        if !self.sources[source].has_ended() {
            self.end_clients(source);
        }
        self.sources.remove(source).finish(&mut self.text)
    }
}
