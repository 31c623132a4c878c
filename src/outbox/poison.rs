//! Why a message can never be sent as it is: a reason for the metric's label and a sentence for the person who must
//! mend it. What happens then (`on_poison`) is decided by the relay.

use std::fmt;

/// The message's own fault, found before or by the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poison {
    pub reason: PoisonReason,
    /// One sentence that names the column and says what to do.
    pub sentence: String,
}

impl Poison {
    pub fn new(reason: PoisonReason, sentence: impl Into<String>) -> Self {
        Poison { reason, sentence: sentence.into() }
    }
}

impl fmt::Display for Poison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Poison {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PoisonReason {
    /// `aggregate_id` is NULL or empty.
    NullKey,
    /// `aggregate_id` is a bytea that was not printed as hex.
    BadKey,
    /// `payload` is NULL.
    NullPayload,
    /// `payload` is a bytea that was not printed as hex.
    BadPayload,
    /// Neither `message_id` nor `id` has a value.
    NoMessageId,
    /// No topic can be named, or Kafka does not allow the name.
    BadTopic,
    /// `headers` is no JSON object, or cannot be written as Kafka headers.
    BadHeaders,
    /// `headers` uses the name of a header that walpost writes.
    ReservedHeader,
    /// Larger than the client or the broker takes.
    TooLarge,
    /// The broker refused the record for what it is.
    InvalidRecord,
    /// A parked value was left in the outbox because of its size, and is not to be had from there any more.
    ValueGone,
}

impl PoisonReason {
    pub const ALL: [PoisonReason; 11] = [
        PoisonReason::NullKey,
        PoisonReason::BadKey,
        PoisonReason::NullPayload,
        PoisonReason::BadPayload,
        PoisonReason::NoMessageId,
        PoisonReason::BadTopic,
        PoisonReason::BadHeaders,
        PoisonReason::ReservedHeader,
        PoisonReason::TooLarge,
        PoisonReason::InvalidRecord,
        PoisonReason::ValueGone,
    ];

    /// The label of the metric.
    pub fn as_str(self) -> &'static str {
        match self {
            PoisonReason::NullKey => "null_key",
            PoisonReason::BadKey => "bad_key",
            PoisonReason::NullPayload => "null_payload",
            PoisonReason::BadPayload => "bad_payload",
            PoisonReason::NoMessageId => "no_message_id",
            PoisonReason::BadTopic => "bad_topic",
            PoisonReason::BadHeaders => "bad_headers",
            PoisonReason::ReservedHeader => "reserved_header",
            PoisonReason::TooLarge => "too_large",
            PoisonReason::InvalidRecord => "invalid_record",
            PoisonReason::ValueGone => "value_gone",
        }
    }
}

impl fmt::Display for PoisonReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
