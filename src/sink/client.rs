//! What the sink needs of a Kafka client: producers, and somebody to ask. Both answer through the mailbox. The rules of the
//! sink are tried against scripted ones.

use std::sync::Arc;

use rdkafka::error::KafkaError;

use crate::config::Config;
use crate::lsn::Lsn;
use crate::router::Record;
use crate::sink::SettingsRefused;
use crate::sink::librarian::{Ask, Librarian};
use crate::sink::producer::{Mailbox, Producer};
use crate::sink::properties::Kind;
use crate::sink::tail::TailReader;

/// A client of one cluster.
pub trait Client: Send {
    /// A new producer, whose reports carry `generation`. Contacts no broker before it returns.
    fn producer(&self, kind: Kind, generation: u32) -> Result<Box<dyn Produce>, KafkaError>;

    /// Sends a question; the answer comes through the mailbox.
    fn ask(&self, question: Ask);

    /// Asks what partitions hold of our own records from a commit LSN on; the answer comes through the mailbox, with the
    /// number `asked`.
    fn read_tails(&self, topic: Arc<str>, partitions: Vec<u32>, from: Lsn, asked: u64);
}

/// One life of a producer. Each record that it takes comes back in exactly one report.
pub trait Produce: Send {
    fn kind(&self) -> Kind;

    /// Takes a record, in the order of its partition. Never blocks.
    fn send(&self, ticket: usize, record: &Record, partition: i32) -> Result<(), KafkaError>;

    /// A fatal error has ended it: nothing more can be sent.
    fn is_dead(&self) -> bool;

    /// Asks for everything back that was not sent yet. May have to be repeated: a batch that fails while others are in
    /// flight is put back on the queue after an earlier purge has passed.
    fn purge_queue(&self);

    /// Ends it without waiting. Whatever is still out comes back as failed before the mailbox says that this generation is
    /// dropped.
    fn end(self: Box<Self>);
}

/// The real one.
pub struct Librdkafka {
    config: Arc<Config>,
    mailbox: Arc<Mailbox>,
    librarian: Librarian,
    tails: TailReader,
}

impl Librdkafka {
    /// Starts what answers questions; contacts no broker before it returns. Fails on settings that librdkafka refuses.
    pub fn start(config: &Arc<Config>, mailbox: &Arc<Mailbox>) -> Result<Librdkafka, SettingsRefused> {
        let refused = |error: KafkaError| SettingsRefused(error.to_string());
        let librarian = Librarian::start(config, mailbox.clone()).map_err(refused)?;
        let tails = TailReader::start(config, mailbox.clone()).map_err(refused)?;
        Ok(Librdkafka { config: config.clone(), mailbox: mailbox.clone(), librarian, tails })
    }
}

impl Client for Librdkafka {
    fn producer(&self, kind: Kind, generation: u32) -> Result<Box<dyn Produce>, KafkaError> {
        Ok(Box::new(Producer::create(&self.config, kind, generation, &self.mailbox)?))
    }

    fn ask(&self, question: Ask) {
        self.librarian.ask(question);
    }

    fn read_tails(&self, topic: Arc<str>, partitions: Vec<u32>, from: Lsn, asked: u64) {
        self.tails.ask(topic, partitions, from, asked);
    }
}
