//! A stand-in for a broker where no Kafka can be had: the mock cluster that librdkafka carries for its own tests. **It is
//! not Apache Kafka**: it keeps records in memory, has no replicas, no limits and no other implementation behind it than
//! the client's own idea of a broker. No promise of walpost is tested on it; `walpost demo` falls back to it and says so.

use rdkafka::error::KafkaError;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

/// One broker in this process, on a port of the loopback. Ends when it is dropped, and its records with it.
pub struct StandIn {
    cluster: MockCluster<'static, DefaultProducerContext>,
}

/// The stand-in could not be started.
#[derive(Debug, thiserror::Error)]
#[error("the stand-in for a broker could not be started")]
pub struct StandInError(#[from] KafkaError);

impl StandIn {
    /// Starts it. A topic comes into being when somebody asks for it, as with a broker's default settings.
    pub fn start() -> Result<StandIn, StandInError> {
        Ok(StandIn { cluster: MockCluster::new(1)? })
    }

    /// Where clients reach it.
    pub fn brokers(&self) -> String {
        self.cluster.bootstrap_servers()
    }

    /// The next produce requests get these answers, whatever they carry, and nothing of them is stored.
    #[cfg(test)]
    pub fn refuse_produce(&self, errors: &[rdkafka::types::RDKafkaRespErr]) {
        self.cluster.request_errors(rdkafka::types::RDKafkaApiKey::Produce, errors);
    }

    /// The next requests for a group's coordinator get these answers.
    #[cfg(test)]
    pub fn refuse_coordinator(&self, errors: &[rdkafka::types::RDKafkaRespErr]) {
        self.cluster.request_errors(rdkafka::types::RDKafkaApiKey::FindCoordinator, errors);
    }
}
