//! One librdkafka producer, and the mailbox through which its reports come back. The mailbox is the only thing that the
//! threads of librdkafka and the relay's loop share: reports go in, the loop is woken, the loop takes them all.

use std::cell::RefCell;
use std::ffi::CStr;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::producer::{
    DeliveryResult, NoCustomPartitioner, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};
use tokio::sync::Notify;

use crate::config::Config;
use crate::router::{Header, Record};
use crate::sink::client::Produce;
use crate::sink::feed::Handles;
use crate::sink::librarian::Answer;
use crate::sink::properties::{self, Kind};
use crate::sink::tail::TailAnswer;

/// What wakes the loop.
#[derive(Default)]
pub struct Mailbox {
    inner: Mutex<Inbox>,
    woken: Notify,
}

/// What has come since the loop last looked.
#[derive(Default)]
pub struct Inbox {
    /// Tickets that the broker confirmed, with the generation of their producer.
    pub delivered: Vec<(u32, usize)>,
    pub failed: Vec<FailedReport>,
    /// Generations whose producer is gone, with all its reports before this.
    pub dropped: Vec<u32>,
    pub answers: Vec<Answer>,
    pub tails: Vec<TailAnswer>,
    /// The newest error of a connection.
    pub error: Option<String>,
    pub all_brokers_down: bool,
    /// Something was put, and the loop has been woken for it.
    waits: bool,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // A panic while holding it cannot leave the vectors broken.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the inbox and wakes the loop.
    pub fn put(&self, add: impl FnOnce(&mut Inbox)) {
        let mut inbox = self.lock();
        // Reports come by the hundred: the first one wakes, and the loop takes all that are there when it looks.
        let first = !std::mem::replace(&mut inbox.waits, true);
        add(&mut inbox);
        drop(inbox);
        if first {
            self.woken.notify_one();
        }
    }

    /// A report of success, with the record's offset; negative: it came without one.
    ///
    /// librdkafka takes a broker's "out of sequence" for "stored before" where a later batch of the partition was
    /// acknowledged first. A broker that has just made the partition lets that later batch in, and the record is
    /// nowhere: it comes back without an offset. A repeat is the lesser harm.
    pub fn acknowledged(&self, generation: u32, ticket: usize, offset: i64, record: impl FnOnce() -> Record) {
        if offset >= 0 || planted!(TrustsNoOffset) {
            return self.put(|inbox| inbox.delivered.push((generation, ticket)));
        }
        let report = FailedReport {
            generation,
            ticket,
            code: RDKafkaErrorCode::OutOfOrderSequenceNumber,
            sentence: Some("it was acknowledged without an offset, so it may not be stored".to_owned()),
            possibly_persisted: true,
            inferred: true,
            record: record(),
        };
        self.put(|inbox| inbox.failed.push(report));
    }

    /// All that has come, swapped against `into`, whose vectors are emptied and reused.
    pub fn take(&self, into: &mut Inbox) {
        into.delivered.clear();
        into.failed.clear();
        into.dropped.clear();
        into.answers.clear();
        into.tails.clear();
        into.error = None;
        into.all_brokers_down = false;
        into.waits = false;
        mem::swap(&mut *self.lock(), into);
    }

    /// Resolves when something was put since the last wake. Cancel-safe.
    pub async fn woken(&self) {
        self.woken.notified().await;
    }
}

/// A report that says no. The record comes back whole, so that no second copy is ever kept.
pub struct FailedReport {
    pub generation: u32,
    pub ticket: usize,
    pub code: RDKafkaErrorCode,
    /// The broker's own sentence about this record.
    pub sentence: Option<String>,
    /// The record may have been stored all the same.
    pub possibly_persisted: bool,
    /// librdkafka calls it delivered, and only infers so: later ones of its partition may be stored without it.
    pub inferred: bool,
    pub record: Record,
}

/// Receives what librdkafka has to say of one client.
pub struct Context {
    mailbox: Arc<Mailbox>,
    generation: u32,
    /// A purge of ours makes librdkafka cry: such a line is no news then.
    purging: Arc<AtomicBool>,
    /// Nobody polls for the errors of its connections: they are taken from the log.
    listens_to_log: bool,
}

impl Context {
    pub fn new(mailbox: Arc<Mailbox>, generation: u32) -> Self {
        Context { mailbox, generation, purging: Arc::default(), listens_to_log: false }
    }

    /// Of a client that only asks.
    pub fn that_listens_to_log(mailbox: Arc<Mailbox>) -> Self {
        Context { listens_to_log: true, ..Context::new(mailbox, 0) }
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        use RDKafkaLogLevel as Level;
        // It calls the gapless guarantee experimental at each start, on which we rest knowingly; and a cluster that has
        // just started makes it ask for its id more than once.
        if self.purging.load(Ordering::Relaxed)
            || text.contains("enable.gapless.guarantee is experimental")
            || facility == "GETPID"
        {
            return tracing::debug!(target: "librdkafka", facility, "{text}");
        }
        if self.listens_to_log && facility == "FAIL" {
            // It begins with the name of the thread.
            let reason = text.split_once("]: ").map_or(text, |(_, reason)| reason);
            self.mailbox.put(|inbox| inbox.error = Some(without_counts(reason).to_owned()));
        }
        match level {
            // "error" means that somebody must act. Whether that is so, the relay's own state says.
            Level::Emerg | Level::Alert | Level::Critical | Level::Error | Level::Warning => {
                tracing::warn!(target: "librdkafka", facility, "{text}")
            }
            Level::Notice | Level::Info => tracing::debug!(target: "librdkafka", facility, "{text}"),
            Level::Debug => tracing::trace!(target: "librdkafka", facility, "{text}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if self.purging.load(Ordering::Relaxed) {
            return;
        }
        let all_down = error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown);
        self.mailbox.put(|inbox| {
            inbox.all_brokers_down |= all_down;
            // "1/1 brokers are down" says less than the error that came before it.
            if !all_down || inbox.error.is_none() {
                inbox.error = Some(without_counts(reason).to_owned());
            }
        });
    }
}

/// Without how long it took and how often it was suppressed: those change while the error does not.
pub fn without_counts(reason: &str) -> &str {
    reason.split_once(" (after ").map_or(reason, |(error, _)| error)
}

impl ProducerContext for Context {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: usize) {
        match result {
            Ok(message) => {
                self.mailbox.acknowledged(self.generation, ticket, message.offset(), || record_of(message));
            }
            Err((error, message)) => {
                let report = FailedReport {
                    generation: self.generation,
                    ticket,
                    code: error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown),
                    sentence: sentence(message),
                    possibly_persisted: possibly_persisted(message),
                    inferred: false,
                    record: record_of(message),
                };
                self.mailbox.put(|inbox| inbox.failed.push(report));
            }
        }
    }
}

/// The broker's own text on this record: the crate has no wrapper for it.
fn sentence(message: &BorrowedMessage<'_>) -> Option<String> {
    // SAFETY: the pointer is the message that this report is about, alive for the whole call; the text belongs to it and
    // is copied before the call ends.
    let text = unsafe { rdkafka::bindings::rd_kafka_message_produce_errstr(message.ptr()) };
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

fn possibly_persisted(message: &BorrowedMessage<'_>) -> bool {
    // SAFETY: as above.
    let status = unsafe { rdkafka::bindings::rd_kafka_message_status(message.ptr()) };
    status != rdkafka::bindings::rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_NOT_PERSISTED
}

/// The record as it was fed. Its partition hash is not in the message; the sink keeps it.
fn record_of(message: &BorrowedMessage<'_>) -> Record {
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        headers
            .iter()
            .map(|header| Header { name: header.key.into(), value: header.value.map(Bytes::copy_from_slice) })
            .collect()
    });
    Record {
        topic: message.topic().into(),
        key: message.key().map(Bytes::copy_from_slice),
        value: message.payload().map(Bytes::copy_from_slice),
        headers,
        partition_hash: 0,
    }
}

/// One life of a librdkafka producer. All its reports carry its generation.
pub struct Producer {
    generation: u32,
    kind: Kind,
    /// Before `inner`, which they are of: fields are dropped in this order.
    handles: RefCell<Handles>,
    inner: ThreadedProducer<Context, NoCustomPartitioner>,
    mailbox: Arc<Mailbox>,
    purging: Arc<AtomicBool>,
}

impl Producer {
    /// Starts librdkafka's threads; contacts no broker before it returns. Fails on settings that librdkafka refuses.
    pub fn create(config: &Config, kind: Kind, generation: u32, mailbox: &Arc<Mailbox>) -> KafkaResult<Producer> {
        let context = Context::new(mailbox.clone(), generation);
        let purging = context.purging.clone();
        let inner = ThreadedProducer::from_config_and_context(&properties::producer(config, kind), context)?;
        // SAFETY: the handles are dropped before `inner`, here and in `end`.
        let handles = RefCell::new(unsafe { Handles::of(inner.client().native_ptr()) });
        Ok(Producer { generation, kind, handles, inner, mailbox: mailbox.clone(), purging })
    }
}

impl Produce for Producer {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn send(&self, ticket: usize, record: &Record, partition: i32) -> Result<(), KafkaError> {
        self.handles.borrow_mut().feed(ticket, record, partition)
    }

    fn is_dead(&self) -> bool {
        self.inner.client().fatal_error().is_some()
    }

    fn purge_queue(&self) {
        self.purging.store(true, Ordering::Relaxed);
        self.inner.purge(PurgeConfig::default().queue());
    }

    /// On a thread of its own, because that takes up to half a second.
    fn end(self: Box<Self>) {
        self.purging.store(true, Ordering::Relaxed);
        let Producer { generation, handles, inner, mailbox, .. } = *self;
        let end = move || {
            drop(handles);
            drop(inner);
            mailbox.put(|inbox| inbox.dropped.push(generation));
        };
        // Where no thread can be had the caller waits: rare, and better than a report that never comes.
        if let Err(error) = std::thread::Builder::new().name("kafka-drop".into()).spawn(end) {
            tracing::warn!(%error, "no thread to end a Kafka producer on: the process is out of threads");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_is_put_after_a_look_wakes_again_and_nothing_between_is_left_behind() {
        let (mailbox, mut inbox) = (Mailbox::default(), Inbox::default());
        for ticket in [1, 2, 3] {
            for more in [0, 10] {
                mailbox.put(|inbox| inbox.delivered.push((1, ticket + more)));
            }
            let woken = tokio::time::timeout(Duration::from_secs(5), mailbox.woken()).await;
            assert!(woken.is_ok(), "report {ticket} woke nobody");
            mailbox.take(&mut inbox);
            assert_eq!(inbox.delivered, [(1, ticket), (1, ticket + 10)]);
        }
    }
}
