//! What librdkafka tells of the client besides its answers.

use std::sync::{Mutex, PoisonError};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::sink::producer::without_counts;

/// Keeps the newest error of a connection, for the reason of an ask that failed. What librdkafka logs is for who looks for
/// it: the producer, which talks to the same brokers, says aloud what is wrong with them.
#[derive(Default)]
pub struct Listener {
    last: Mutex<Option<String>>,
}

impl Listener {
    pub fn last(&self) -> Option<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ClientContext for Listener {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(target: "librdkafka", facility, "{text}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        // The end of a partition is no error, the coordinator is not needed, and "1/1 brokers are down" says less than the
        // error before it.
        let says_nothing = matches!(
            code,
            Some(
                Code::PartitionEOF
                    | Code::GroupAuthorizationFailed
                    | Code::CoordinatorNotAvailable
                    | Code::CoordinatorLoadInProgress
                    | Code::NotCoordinator
                    | Code::AllBrokersDown
            )
        );
        if !says_nothing {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(without_counts(reason).to_owned());
        }
    }
}

impl ConsumerContext for Listener {}
