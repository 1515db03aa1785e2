//! One frame, whole: header and the message of its kind and flags. Used by the fuzz target too.

use terrace_connector::protocol::{
    Attach, AttachReply, Complete, Copied, Copy, EndStep, EndStepReply, ErrorReply, FrameFlags, FrameHeader, Goodbye,
    HEADER_BYTES, Hello, HelloReply, Kind, Lease, LeaseReply, LoadRows, Lookup, LookupReply, MAX_HELLO_BYTES, Pin,
    PinReply, PrepareStore, PrepareStoreReply, ProtocolError, StatsReply, StoreRows, Unpin, decode, encode,
};

/// Any body.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a test makes a few at a time")]
pub enum Message {
    Empty,
    Hello(Hello),
    HelloReply(HelloReply),
    Lookup(Lookup),
    LookupReply(LookupReply),
    Lease(Lease),
    LeaseReply(LeaseReply),
    PrepareStore(PrepareStore),
    PrepareStoreReply(PrepareStoreReply),
    EndStep(EndStep),
    EndStepReply(EndStepReply),
    Complete(Complete),
    Pin(Pin),
    PinReply(PinReply),
    Unpin(Unpin),
    StoreRows(StoreRows),
    LoadRows(LoadRows),
    StatsReply(StatsReply),
    Goodbye(Goodbye),
    Attach(Attach),
    AttachReply(AttachReply),
    Copy(Copy),
    Copied(Copied),
    ErrorReply(ErrorReply),
}

/// Why bytes are not one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Bytes are missing: a reader would wait for them.
    Short,
    /// Bytes follow the frame.
    Long,
    /// No kind of message has these flags.
    Flags,
    Protocol(ProtocolError),
}

impl FrameError {
    /// The name that the vectors use.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Long => "long",
            Self::Flags => "flags",
            Self::Protocol(error) => match error {
                ProtocolError::Magic => "magic",
                ProtocolError::Version { .. } => "version",
                ProtocolError::Kind { .. } => "kind",
                ProtocolError::Flags { .. } => "flags",
                ProtocolError::Length { .. } => "length",
                ProtocolError::Descriptors { .. } => "descriptors",
                ProtocolError::Reserved => "reserved",
                ProtocolError::Body { .. } => "body",
            },
        }
    }
}

impl From<ProtocolError> for FrameError {
    fn from(error: ProtocolError) -> Self {
        Self::Protocol(error)
    }
}

/// The frame in `bytes`, all of it.
pub fn decode_frame(bytes: &[u8], message_bytes: u32) -> Result<(FrameHeader, Message), FrameError> {
    let (header, body) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(FrameError::Short)?;
    let header = FrameHeader::from_bytes(header, message_bytes.max(MAX_HELLO_BYTES))?;
    let limit = if header.kind == Kind::Hello { MAX_HELLO_BYTES } else { message_bytes };
    if header.body_bytes > limit {
        return Err(ProtocolError::Length { got: header.body_bytes, limit }.into());
    }
    let length = header.body_bytes as usize;
    if body.len() != length {
        return Err(if body.len() < length { FrameError::Short } else { FrameError::Long });
    }
    let message = decode_body(header.kind, header.flags, body)?;
    Ok((header, message))
}

fn decode_body(kind: Kind, flags: FrameFlags, body: &[u8]) -> Result<Message, FrameError> {
    let empty = |what: &'static str| match body.len() {
        0 => Ok(Message::Empty),
        got => Err(ProtocolError::Body { what, why: format!("{got} bytes, there must be none") }),
    };
    let request = flags == FrameFlags::REQUEST;
    let reply = flags == FrameFlags::REPLY;
    let one_way = flags == FrameFlags::ONE_WAY;
    Ok(match kind {
        // The server sends these one way, so nobody refuses them.
        Kind::Goodbye if one_way => Message::Goodbye(decode("Goodbye", body)?),
        Kind::Copied if one_way => Message::Copied(decode("Copied", body)?),
        Kind::Goodbye | Kind::Copied => return Err(FrameError::Flags),
        _ if flags == FrameFlags::ERROR => Message::ErrorReply(decode("ErrorReply", body)?),
        Kind::Hello if request => Message::Hello(decode("Hello", body)?),
        Kind::Hello if reply => Message::HelloReply(decode("HelloReply", body)?),
        Kind::Lookup if request => Message::Lookup(decode("Lookup", body)?),
        Kind::Lookup if reply => Message::LookupReply(decode("LookupReply", body)?),
        Kind::Lease if request => Message::Lease(decode("Lease", body)?),
        Kind::Lease if reply => Message::LeaseReply(decode("LeaseReply", body)?),
        Kind::PrepareStore if request => Message::PrepareStore(decode("PrepareStore", body)?),
        Kind::PrepareStore if reply => Message::PrepareStoreReply(decode("PrepareStoreReply", body)?),
        Kind::EndStep if request => Message::EndStep(decode("EndStep", body)?),
        Kind::EndStep if reply => Message::EndStepReply(decode("EndStepReply", body)?),
        Kind::Complete if one_way => Message::Complete(decode("Complete", body)?),
        Kind::Ping if request || reply => empty("Ping")?,
        Kind::Reset if request || reply => empty("Reset")?,
        Kind::Pin if request => Message::Pin(decode("Pin", body)?),
        Kind::Pin if reply => Message::PinReply(decode("PinReply", body)?),
        Kind::Unpin if request => Message::Unpin(decode("Unpin", body)?),
        Kind::Unpin if reply => empty("reply to Unpin")?,
        Kind::StoreRows if one_way => Message::StoreRows(decode("StoreRows", body)?),
        Kind::LoadRows if one_way => Message::LoadRows(decode("LoadRows", body)?),
        Kind::Stats if request => empty("Stats")?,
        Kind::Stats if reply => Message::StatsReply(decode("StatsReply", body)?),
        Kind::Bye if one_way => empty("Bye")?,
        Kind::Attach if request => Message::Attach(decode("Attach", body)?),
        Kind::Attach if reply => Message::AttachReply(decode("AttachReply", body)?),
        Kind::Copy if one_way => Message::Copy(decode("Copy", body)?),
        _ => return Err(FrameError::Flags),
    })
}

/// The frame as bytes; `body_bytes` of `header` is taken from the message.
pub fn encode_frame(mut header: FrameHeader, message: &Message) -> Vec<u8> {
    let mut body = Vec::new();
    let encoded = match message {
        Message::Empty => Ok(()),
        Message::Hello(message) => encode(message, &mut body),
        Message::HelloReply(message) => encode(message, &mut body),
        Message::Lookup(message) => encode(message, &mut body),
        Message::LookupReply(message) => encode(message, &mut body),
        Message::Lease(message) => encode(message, &mut body),
        Message::LeaseReply(message) => encode(message, &mut body),
        Message::PrepareStore(message) => encode(message, &mut body),
        Message::PrepareStoreReply(message) => encode(message, &mut body),
        Message::EndStep(message) => encode(message, &mut body),
        Message::EndStepReply(message) => encode(message, &mut body),
        Message::Complete(message) => encode(message, &mut body),
        Message::Pin(message) => encode(message, &mut body),
        Message::PinReply(message) => encode(message, &mut body),
        Message::Unpin(message) => encode(message, &mut body),
        Message::StoreRows(message) => encode(message, &mut body),
        Message::LoadRows(message) => encode(message, &mut body),
        Message::StatsReply(message) => encode(message, &mut body),
        Message::Goodbye(message) => encode(message, &mut body),
        Message::Attach(message) => encode(message, &mut body),
        Message::AttachReply(message) => encode(message, &mut body),
        Message::Copy(message) => encode(message, &mut body),
        Message::Copied(message) => encode(message, &mut body),
        Message::ErrorReply(message) => encode(message, &mut body),
    };
    encoded.expect("a message that can be written");
    header.body_bytes = u32::try_from(body.len()).expect("a body of less than 4 GiB");
    [header.to_bytes().as_slice(), &body].concat()
}
