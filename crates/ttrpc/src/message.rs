//! Outgoing messages: header, envelope and payload, encoded into one buffer in one pass.
//!
//! A typed argument is written straight into its place inside the envelope, never into a
//! buffer of its own first. Stream id and remaining time are filled in when the message
//! is queued: ids must appear on the wire in order, and waiting for room takes time.
//!
//! **Invariant:** an [`Outgoing`] is never above the limit.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use crate::{
    Code, Direction, Flags, HEADER_LEN, Header, MAX_PAYLOAD, MessageType, Metadata, Oversize,
    Status, wire,
};

/// A message ready for the wire but for its stream id.
#[derive(Debug)]
pub(crate) struct Outgoing {
    buf: BytesMut,
}

/// What a request says besides its argument and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope<'a> {
    pub(crate) service: &'a str,
    pub(crate) method: &'a str,
    pub(crate) metadata: &'a Metadata,
}

/// The most that the time of a request takes: its key and a number of any size.
const TIMEOUT_MAX_LEN: usize = 1 + 10;

impl Outgoing {
    /// Opens a stream. There is no argument where the method takes a stream of them.
    pub(crate) fn request<M: Message>(
        envelope: Envelope<'_>,
        argument: Option<&M>,
        flags: Flags,
    ) -> Result<Self, Oversize> {
        let len = argument.map_or(0, M::encoded_len);
        let mut out = Self::begin_request(envelope, len, flags)?;
        if let Some(argument) = argument {
            out.put_payload(3, len, argument);
        }
        Ok(out)
    }

    /// A unary request whose argument is encoded already.
    pub(crate) fn encoded_request(
        envelope: Envelope<'_>,
        argument: &[u8],
    ) -> Result<Self, Oversize> {
        let mut out = Self::begin_request(envelope, argument.len(), Flags::NONE)?;
        if !argument.is_empty() {
            out.put_field(3, argument.len());
            out.buf.put_slice(argument);
        }
        Ok(out)
    }

    /// All but the argument, which may come last.
    fn begin_request(
        Envelope { service, method, metadata }: Envelope<'_>,
        argument_len: usize,
        flags: Flags,
    ) -> Result<Self, Oversize> {
        let metadata = metadata.as_wire();
        let total = field_len(service.len())
            + field_len(method.len())
            + payload_len(argument_len)
            + metadata.iter().map(|kv| field_len(kv.encoded_len())).sum::<usize>();
        let mut out = Self::begin(MessageType::REQUEST, flags, total, TIMEOUT_MAX_LEN)?;
        out.put_field(1, service.len());
        out.buf.put_slice(service.as_bytes());
        out.put_field(2, method.len());
        out.buf.put_slice(method.as_bytes());
        for kv in metadata {
            out.put_message(5, kv.encoded_len(), kv);
        }
        Ok(out)
    }

    /// Adds to a request the time its caller has left; 0 adds nothing. Protobuf takes
    /// fields in any order, so this one may come last.
    pub(crate) fn with_timeout(mut self, timeout_nano: i64) -> Result<Self, Oversize> {
        let time = wire::Request { timeout_nano, ..wire::Request::default() };
        check_limit(self.len() - HEADER_LEN + time.encoded_len())?;
        put_all(&mut self.buf, &time);
        Ok(self)
    }

    /// Ends a stream with a result.
    pub(crate) fn response<M: Message>(result: &M) -> Result<Self, Oversize> {
        let len = result.encoded_len();
        let mut out = Self::begin(MessageType::RESPONSE, Flags::NONE, payload_len(len), 0)?;
        out.put_payload(2, len, result);
        Ok(out)
    }

    /// Ends a stream with a refusal. It always fits: of a huge status only the start of
    /// its text goes out. And it is never taken for a success.
    pub(crate) fn refusal(mut status: Status) -> Self {
        const CLIP: usize = 64 << 10;
        if status.code == Code::Ok {
            status = Status::internal(format!("refused with OK: {}", status.message));
        }
        let mut status = wire::Status::from(status);
        if status.encoded_len() > MAX_PAYLOAD - CLIP {
            status.details.clear();
            status.message.truncate(status.message.floor_char_boundary(CLIP));
        }
        let len = status.encoded_len();
        let mut out = Self::begin(MessageType::RESPONSE, Flags::NONE, field_len(len), 0)
            .expect("a clipped status is below the limit");
        out.put_message(1, len, &status);
        out
    }

    /// One item of a stream.
    pub(crate) fn data<M: Message>(item: &M) -> Result<Self, Oversize> {
        let mut out = Self::begin(MessageType::DATA, Flags::NONE, item.encoded_len(), 0)?;
        put_all(&mut out.buf, item);
        Ok(out)
    }

    /// The end of a stream, in a message of its own: Go servers refuse an end that comes
    /// together with data.
    pub(crate) fn end_of_stream() -> Self {
        Self::begin(MessageType::DATA, Flags::REMOTE_CLOSED | Flags::NO_DATA, 0, 0)
            .expect("an empty message is below the limit")
    }

    /// With the header.
    pub(crate) fn len(&self) -> usize {
        self.buf.len()
    }

    /// The finished bytes, on the given stream.
    pub(crate) fn on(mut self, stream_id: u32) -> Bytes {
        let len = u32::try_from(self.len() - HEADER_LEN).expect("checked against the limit");
        self.buf[..4].copy_from_slice(&len.to_be_bytes());
        self.buf[4..8].copy_from_slice(&stream_id.to_be_bytes());
        self.buf.freeze()
    }

    fn begin(
        kind: MessageType,
        flags: Flags,
        payload: usize,
        spare: usize,
    ) -> Result<Self, Oversize> {
        check_limit(payload)?;
        let mut buf = BytesMut::with_capacity(HEADER_LEN + payload + spare);
        buf.put_slice(&Header { len: 0, stream_id: 0, kind, flags }.to_bytes());
        Ok(Self { buf })
    }

    /// What stands before `len` bytes of a string or message: wire type 2, then the length.
    fn put_field(&mut self, number: u8, len: usize) {
        self.buf.put_u8(number << 3 | 2);
        prost::encode_length_delimiter(len, &mut self.buf).expect("BytesMut grows");
    }

    fn put_message<M: Message>(&mut self, number: u8, len: usize, message: &M) {
        self.put_field(number, len);
        put_all(&mut self.buf, message);
    }

    /// A message as bytes inside its envelope; like all empty bytes, an empty one is left out.
    fn put_payload<M: Message>(&mut self, number: u8, len: usize, message: &M) {
        if len > 0 {
            self.put_message(number, len, message);
        }
    }
}

fn put_all<M: Message>(buf: &mut BytesMut, message: &M) {
    message.encode(buf).expect("BytesMut grows");
}

/// What a field of `len` bytes takes with its key and length.
fn field_len(len: usize) -> usize {
    1 + prost::length_delimiter_len(len) + len
}

fn payload_len(len: usize) -> usize {
    if len > 0 { field_len(len) } else { 0 }
}

fn check_limit(len: usize) -> Result<(), Oversize> {
    match len <= MAX_PAYLOAD {
        true => Ok(()),
        false => Err(Oversize { direction: Direction::Sent, len }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::{Decoded, Decoder};

    /// The one frame in `out`, as a receiver sees it.
    fn received(out: Outgoing, stream_id: u32) -> (Header, Bytes) {
        let mut buf = BytesMut::from(out.on(stream_id));
        match Decoder::default().decode(&mut buf) {
            Some(Decoded::Frame(header, payload)) if buf.is_empty() => (header, payload),
            other => panic!("not exactly one frame: {other:?}"),
        }
    }

    proptest! {
        #[test]
        fn a_request_decodes_to_what_was_asked(
            service in ".{0,40}",
            method in ".{0,300}",
            argument in proptest::option::of(".{0,400}"),
            timeout_nano in any::<i64>(),
            pairs in vec((".{0,20}", ".{0,200}"), 0..5),
            stream_id in any::<u32>(),
        ) {
            let mut metadata = Metadata::new();
            for (key, value) in &pairs {
                metadata.append(key, value);
            }
            let envelope = Envelope { service: &service, method: &method, metadata: &metadata };
            let out = Outgoing::request(envelope, argument.as_ref(), Flags::REMOTE_OPEN).unwrap();
            let (header, payload) = received(out.with_timeout(timeout_nano).unwrap(), stream_id);
            prop_assert_eq!(header.stream_id, stream_id);
            prop_assert_eq!(header.kind, MessageType::REQUEST);
            prop_assert_eq!(header.flags, Flags::REMOTE_OPEN);

            let want = wire::Request {
                service,
                method,
                payload: argument.unwrap_or_default().encode_to_vec().into(),
                timeout_nano,
                metadata: metadata.as_wire().to_vec(),
            };
            prop_assert_eq!(&wire::Request::decode(payload).unwrap(), &want);
            let envelope =
                Envelope { service: &want.service, method: &want.method, metadata: &metadata };
            let out = Outgoing::encoded_request(envelope, &want.payload).unwrap();
            let (header, payload) = received(out.with_timeout(timeout_nano).unwrap(), stream_id);
            prop_assert_eq!((header.stream_id, header.flags), (stream_id, Flags::NONE));
            prop_assert_eq!(wire::Request::decode(payload).unwrap(), want);
        }

        #[test]
        fn a_response_decodes_to_the_result(result in ".{0,400}") {
            let (header, payload) = received(Outgoing::response(&result).unwrap(), 5);
            prop_assert_eq!(header.kind, MessageType::RESPONSE);
            let opened = wire::Response::open(payload).unwrap();
            prop_assert_eq!(String::decode(opened).unwrap(), result);
        }
    }

    #[test]
    fn the_limit_is_exact() {
        let metadata = Metadata::new();
        let envelope = Envelope { service: "", method: "", metadata: &metadata };
        let request = |len: usize, nano| {
            Outgoing::request(envelope, Some(&vec![0u8; len]), Flags::NONE)
                .and_then(|out| out.with_timeout(nano))
        };
        // Keys and lengths: 2 + 2 of the names, 1 + 4 of the payload, 1 + 4 inside it.
        let room = MAX_PAYLOAD - 4 - 5 - 5;
        assert_eq!(request(room, 0).unwrap().len(), HEADER_LEN + MAX_PAYLOAD);
        assert_eq!(request(room + 1, 0).unwrap_err().len, MAX_PAYLOAD + 1);
        assert_eq!(request(room, 1).unwrap_err().len, MAX_PAYLOAD + 2);
        assert!(Outgoing::data(&vec![0u8; MAX_PAYLOAD - 5]).is_ok());
        assert!(Outgoing::data(&vec![0u8; MAX_PAYLOAD - 4]).is_err());
    }

    #[test]
    fn a_refusal_always_fits() {
        let huge = Status::not_found("é".repeat(MAX_PAYLOAD));
        let (_, payload) = received(Outgoing::refusal(huge), 1);
        let error = wire::Response::open(payload).unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        assert!(error.to_string().contains("éé"));
    }

    #[test]
    fn a_refusal_is_never_a_success() {
        let (_, payload) = received(Outgoing::refusal(Status::new(Code::Ok, "fine?")), 1);
        assert_eq!(wire::Response::open(payload).unwrap_err().code(), Code::Internal);
    }
}
