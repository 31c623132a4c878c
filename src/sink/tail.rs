//! Which of our own streamed records the ends of a topic's partitions hold already, so that a session can pass over the
//! rows that an earlier one delivered and did not confirm. The reading blocks, so it has a thread of its own; the answer
//! comes through the mailbox.
//!
//! ```text
//!  own        which records are ours                            (pure)
//!  backwards  what to read next of a partition, when to stop    (pure)
//!  client     the consumer that reads
//!  ends       where the partitions begin and end
//!  headers    a record's headers, as bytes
//!  listener   what librdkafka says meanwhile
//! ```
//!
//! Each partition is read backwards from its end, in growing chunks, until the oldest own record of a chunk lies below
//! the confirmed LSN. LSNs in a partition need not ascend: a failover or a restore begins another history, and a process
//! that was frozen may append old records late. Then this stops too soon or too late. Too soon, and a record that is
//! there is not in the [`Tail`]; too late, and only time is lost. **So every surprise costs a repeat, never a row**: a tail
//! holds nothing but what was read.

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use openssl::sha::Sha256;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};

use crate::config::Config;
use crate::lsn::Lsn;
use crate::sink::producer::Mailbox;
use crate::sink::properties;

mod backwards;
mod client;
mod ends;
pub(super) mod headers;
mod listener;
mod own;
#[cfg(test)]
mod scripted_tests;

use client::Client;
pub(crate) use own::OwnNames;

/// A session's topics are asked for in its first seconds; after that nobody needs the client.
const IDLE: Duration = Duration::from_secs(10);
/// How long one topic may take, all its partitions together.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// Twice the window may be read: one partition may hold all of it, and once more what was fed again after a failed report.
/// But a small window is no reason to give up among the records of other writers.
const RECORDS_AT_LEAST: u64 = 10_000;
const BYTES_AT_LEAST: u64 = 64 << 20;

/// What a partition's end holds of our own streamed records with a commit LSN at or after the confirmed one.
///
/// Of each record 128 bits are kept: the first half of SHA-256 over commit LSN and message id. That one of a million rows
/// is taken for one of a million records has a chance below 10^-26, and nobody can make two ids that collide on purpose.
/// 16 bytes a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// Sorted, each once.
    known: Box<[u128]>,
    cut: Option<Cut>,
}

/// Why a tail may lack records that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The partition has too many records since then.
    Records,
    /// The topic has too many bytes since then.
    Bytes,
    /// Reading took too long.
    Time,
    /// The log was cut or replaced while it was read. Such a tail is empty.
    Replaced,
}

impl Tail {
    fn new(mut known: Vec<u128>, cut: Option<Cut>) -> Tail {
        known.sort_unstable();
        known.dedup();
        Tail { known: known.into_boxed_slice(), cut }
    }

    /// One that holds these records: message id and commit LSN.
    #[cfg(any(test, feature = "simulation"))]
    pub fn of<'a>(records: impl IntoIterator<Item = (&'a [u8], Lsn)>, cut: Option<Cut>) -> Tail {
        Tail::new(records.into_iter().map(|(message_id, commit_lsn)| digest(message_id, commit_lsn)).collect(), cut)
    }

    /// Whether the record of this row is there. `message_id` as it stands in the record's header.
    pub fn contains(&self, message_id: &[u8], commit_lsn: Lsn) -> bool {
        self.known.binary_search(&digest(message_id, commit_lsn)).is_ok()
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Records, each counted once however often it is there.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Why older records may be missing; None: the tail is whole.
    pub fn cut(&self) -> Option<Cut> {
        self.cut
    }
}

/// What is kept of a record. The LSN has a fixed width, so no two pairs are the same bytes.
fn digest(message_id: &[u8], commit_lsn: Lsn) -> u128 {
    let mut sha = Sha256::new();
    sha.update(&commit_lsn.0.to_be_bytes());
    sha.update(message_id);
    let whole = sha.finish();
    whole.iter().take(16).fold(0, |digest, byte| digest << 8 | u128::from(*byte))
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cut::Records => "too many records since the confirmed position",
            Cut::Bytes => "too many bytes since the confirmed position",
            Cut::Time => "reading took too long",
            Cut::Replaced => "the log was cut or replaced meanwhile",
        })
    }
}

/// Why tails could not be read. Each is a sentence for one warning: rows are then only repeated.
#[derive(Debug, thiserror::Error)]
pub enum TailError {
    #[error("records carry no header to tell them by: headers.{0} is switched off")]
    NoHeader(&'static str),
    #[error(
        "reading the topic {topic:?} is not allowed ({code}): grant walpost's principal READ and DESCRIBE on it \
         (no right on a consumer group is needed)"
    )]
    NotAllowed { topic: Arc<str>, code: RDKafkaErrorCode },
    #[error("the topic {topic:?} could not be read within {} s: {reason}", within.as_secs())]
    NoAnswer { topic: Arc<str>, within: Duration, reason: String },
    #[error("the Kafka client that reads could not be made: {0}; see kafka.properties")]
    Client(KafkaError),
    #[error("the thread that reads records back has failed")]
    Ended,
}

impl TailError {
    /// Whether another ask would be answered alike until somebody changes a setting or a right.
    pub fn lasts(&self) -> bool {
        match self {
            TailError::NoHeader(_) | TailError::NotAllowed { .. } | TailError::Client(_) | TailError::Ended => true,
            TailError::NoAnswer { .. } => false,
        }
    }
}

/// What an ask is answered with.
#[derive(Debug)]
pub struct TailAnswer {
    pub topic: Arc<str>,
    /// The number that came with the ask.
    pub asked: u64,
    /// One tail for each partition that was asked for; an empty one where it is missing.
    pub tails: Result<Vec<(u32, Tail)>, TailError>,
}

/// The loop's end of the thread. The thread ends when this is dropped: at once, or where no broker answers when the ask at
/// hand has run out of time.
pub struct TailReader {
    questions: mpsc::Sender<Question>,
    mailbox: Arc<Mailbox>,
    stopping: Arc<AtomicBool>,
}

/// See [`TailReader::ask`].
struct Question {
    topic: Arc<str>,
    partitions: Vec<u32>,
    confirmed: Lsn,
    asked: u64,
}

/// What bounds an ask.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Of one partition.
    records: u64,
    /// Of the whole answer, each record counted as 256 bytes at least. So what is kept of them takes a sixteenth at most: 4
    /// MiB of 64.
    bytes: u64,
    within: Duration,
}

impl TailReader {
    /// Starts the thread, and no client before it is asked. Fails on settings that librdkafka refuses by themselves.
    pub fn start(config: &Config, mailbox: Arc<Mailbox>) -> KafkaResult<TailReader> {
        let twice = |window: usize| (window as u64).saturating_mul(2);
        let records = twice(config.window.messages).max(RECORDS_AT_LEAST);
        let bytes = twice(config.window.bytes).max(BYTES_AT_LEAST);
        TailReader::start_with(config, mailbox, Limits { records, bytes, within: READ_WITHIN })
    }

    fn start_with(config: &Config, mailbox: Arc<Mailbox>, limits: Limits) -> KafkaResult<TailReader> {
        let settings = properties::tail(config);
        settings.create_native_config()?;
        let (questions, inbox) = mpsc::channel();
        let stopping = Arc::new(AtomicBool::new(false));
        let thread = Thread {
            settings,
            names: OwnNames::of(&config.headers),
            limits,
            mailbox: mailbox.clone(),
            stopping: stopping.clone(),
            client: None,
        };
        thread::Builder::new()
            .name("kafka-tails".into())
            .spawn(move || thread.serve(&inbox))
            .map_err(|error| KafkaError::ClientCreation(format!("no thread could be started: {error}")))?;
        Ok(TailReader { questions, mailbox, stopping })
    }

    /// Asks for these partitions of `topic`, back to a commit LSN below `confirmed`. Returns at once; topics are read one
    /// after the other, each within 10 s. `asked` comes back with the answer, so that one to an earlier session is told
    /// apart.
    pub fn ask(&self, topic: Arc<str>, partitions: Vec<u32>, confirmed: Lsn, asked: u64) {
        let question = Question { topic, partitions, confirmed, asked };
        // The thread only ends with this handle. Should it have failed all the same, no row may wait for ever.
        if let Err(mpsc::SendError(Question { topic, asked, .. })) = self.questions.send(question) {
            let tails = Err(TailError::Ended);
            self.mailbox.put(|inbox| inbox.tails.push(TailAnswer { topic, asked, tails }));
        }
    }
}

impl Drop for TailReader {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

struct Thread {
    settings: ClientConfig,
    names: Result<OwnNames, &'static str>,
    limits: Limits,
    mailbox: Arc<Mailbox>,
    stopping: Arc<AtomicBool>,
    /// Made when asked, and dropped after a while without an ask.
    client: Option<Client>,
}

impl Thread {
    fn serve(mut self, inbox: &mpsc::Receiver<Question>) {
        loop {
            let question = match &self.client {
                Some(_) => inbox.recv_timeout(IDLE),
                None => inbox.recv().map_err(RecvTimeoutError::from),
            };
            match question {
                _ if self.stopping.load(Ordering::Relaxed) => return,
                Ok(question) => {
                    // A panic in the client's library must not leave rows waiting for ever; what it broke is dropped.
                    let tails = panic::catch_unwind(AssertUnwindSafe(|| self.tails(&question)));
                    let tails = tails.unwrap_or(Err(TailError::Ended));
                    // A client may hang for good after a broker that froze, silently; and it remembers a refusal.
                    let slow = |tails: &Vec<(u32, Tail)>| tails.iter().any(|(_, tail)| tail.cut() == Some(Cut::Time));
                    if tails.as_ref().map_or(true, slow) {
                        self.drop_client();
                    }
                    let Question { topic, asked, .. } = question;
                    self.mailbox.put(|inbox| inbox.tails.push(TailAnswer { topic, asked, tails }));
                }
                Err(RecvTimeoutError::Timeout) => self.drop_client(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn tails(&mut self, question: &Question) -> Result<Vec<(u32, Tail)>, TailError> {
        let names = self.names.as_ref().map_err(|setting| TailError::NoHeader(setting))?;
        let begun = Instant::now();
        let client = match &self.client {
            Some(client) => client,
            None => self.client.insert(Client::open(&self.settings).map_err(TailError::Client)?),
        };
        let tails = client.tails(question, names, self.limits, &self.stopping);
        match &tails {
            Ok(tails) => {
                let (topic, partitions) = (&*question.topic, tails.len());
                let known: usize = tails.iter().map(|(_, tail)| tail.len()).sum();
                let cut = tails.iter().filter(|(_, tail)| tail.cut().is_some()).count();
                let took_ms = begun.elapsed().as_millis();
                tracing::debug!(topic, partitions, known, cut, took_ms, "read the tails of the topic {topic:?}");
            }
            Err(error) => tracing::debug!(%error, "no tails"),
        }
        tails
    }

    /// On a thread of its own: it takes a tenth of a second, and the next ask need not wait for it.
    fn drop_client(&mut self) {
        let Some(client) = self.client.take() else { return };
        // Where no thread can be had it is dropped here.
        if let Err(error) = thread::Builder::new().name("kafka-drop".into()).spawn(move || drop(client)) {
            tracing::warn!(%error, "no thread to end a Kafka client on: the process is out of threads");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_row_is_known_by_its_id_and_commit_lsn_together() {
        let known = vec![digest(b"a", Lsn(10)), digest(b"b", Lsn(20)), digest(b"a", Lsn(10))];
        let tail = Tail::new(known, None);
        assert_eq!((tail.len(), tail.is_empty()), (2, false));
        assert!(tail.contains(b"a", Lsn(10)) && tail.contains(b"b", Lsn(20)));
        assert!(!tail.contains(b"a", Lsn(20)) && !tail.contains(b"b", Lsn(10)) && !tail.contains(b"", Lsn(10)));
        assert!(Tail::default().is_empty() && !Tail::default().contains(b"a", Lsn(10)));
    }

    #[test]
    fn where_a_header_is_switched_off_the_answer_says_which() {
        let mut config = Config::default();
        config.kafka.brokers = Some("127.0.0.1:1".into());
        config.headers.token = String::new();
        let mailbox = Arc::new(Mailbox::default());
        let reader = TailReader::start(&config, mailbox.clone()).expect("a reader");
        reader.ask("orders".into(), vec![0], Lsn(1), 7);
        let answer = scripted_tests::answer(&mailbox);
        assert_eq!((&*answer.topic, answer.asked), ("orders", 7));
        let error = answer.tails.expect_err("no tails");
        assert!(error.to_string().contains("headers.token") && error.lasts(), "{error}");
    }

    proptest! {
        #[test]
        fn what_was_seen_is_found_again_and_nothing_else(
            seen in proptest::collection::hash_set((proptest::collection::vec(any::<u8>(), 0..40), any::<u64>()), 0..200),
            others in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..40), any::<u64>()), 0..50),
        ) {
            let tail = Tail::new(seen.iter().map(|(id, lsn)| digest(id, Lsn(*lsn))).collect(), None);
            prop_assert_eq!(tail.len(), seen.len());
            prop_assert!(seen.iter().all(|(id, lsn)| tail.contains(id, Lsn(*lsn))));
            prop_assert!(others.iter().all(|other| tail.contains(&other.0, Lsn(other.1)) == seen.contains(other)));
        }
    }
}
