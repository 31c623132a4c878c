//! The sink against a broker that errs on demand: librdkafka's mock cluster, which like a real broker accepts any first
//! sequence of a producer that it does not know, and which can be told to refuse a request. A real broker errs like that for
//! a few milliseconds only; what walpost promises is tested on a real one elsewhere.

use std::collections::BTreeSet;
use std::time::Duration;

use rdkafka::bindings::rd_kafka_resp_err_t as Refused;
use tokio::time::timeout;

use super::*;
use crate::config::Secret;
use crate::sink::reader::Reader;
use crate::sink::stand_in::StandIn;

const TOPIC: &str = "orders";
const WITHIN: Duration = Duration::from_secs(20);

struct Script {
    broker: StandIn,
    sink: KafkaSink,
    next: usize,
}

impl Script {
    fn new() -> Script {
        let broker = StandIn::start().expect("a mock cluster");
        let mut config = Config::default();
        config.kafka.brokers = Some(broker.brokers());
        // Each record in a request of its own, up to five of them under way.
        config.kafka.properties.insert("batch.size".into(), Secret::new("1"));
        config.kafka.properties.insert("linger.ms".into(), Secret::new("0"));
        let sink = KafkaSink::start(Arc::new(config)).expect("a sink");
        Script { broker, sink, next: 0 }
    }

    /// Sends records of one key and waits until all are reported to be delivered.
    async fn deliver(&mut self, count: usize) {
        let until = self.next + count;
        let (mut left, mut deliveries) = (count, Vec::new());
        let all = async {
            while left > 0 {
                let _ = timeout(Duration::from_millis(5), self.sink.woken()).await;
                self.sink.turn(Instant::now(), &mut deliveries);
                for delivery in deliveries.drain(..) {
                    assert!(matches!(delivery, Delivery::Delivered { .. }), "{delivery:?}");
                    left -= 1;
                }
                while self.next < until {
                    if self.sink.send(Ticket(self.next), record(self.next), Instant::now()).is_err() {
                        break;
                    }
                    self.next += 1;
                }
            }
        };
        timeout(WITHIN, all).await.expect("all records to be delivered");
    }

    /// The values that the broker holds, in its order; waits until it holds each number below `distinct`.
    async fn stored(&self, distinct: usize) -> Vec<usize> {
        let mut reader = Reader::start(&self.broker.brokers(), &[TOPIC]).expect("a reader");
        let mut stored = Vec::new();
        let whole = |stored: &[usize]| (0..distinct).all(|number| stored.contains(&number));
        let all = async {
            while !whole(&stored) {
                let value = reader.next().await.expect("a record").value.expect("a value");
                stored.push(String::from_utf8(value).expect("text").parse().expect("a number"));
            }
        };
        let outcome = timeout(WITHIN, all).await;
        assert!(outcome.is_ok(), "reported as delivered, and not stored: the broker holds only {stored:?}");
        stored
    }
}

fn record(number: usize) -> Record {
    Record {
        topic: TOPIC.into(),
        key: Some("key".into()),
        value: Some(number.to_string().into()),
        headers: Vec::new(),
        partition_hash: 2,
    }
}

#[tokio::test]
async fn no_row_is_lost_or_passed_where_a_new_partition_refuses_its_first_batch() {
    let mut script = Script::new();
    script.broker.refuse_produce(&[Refused::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION]);
    script.deliver(20).await;
    assert_eq!(script.stored(20).await, Vec::from_iter(0..20));
    assert_eq!(script.sink.take_rebuilds(), [""; 0], "librdkafka's own retry is enough");
}

/// librdkafka reports success then, and the broker has stored nothing.
const NOT_STORED: Refused = Refused::RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER;

#[tokio::test]
async fn no_row_is_lost_that_is_acknowledged_without_an_offset() {
    let mut script = Script::new();
    script.deliver(5).await;
    script.broker.refuse_produce(&[NOT_STORED]);
    script.deliver(1).await;
    assert_eq!(script.stored(6).await, Vec::from_iter(0..6));
}

#[tokio::test]
async fn a_row_that_later_ones_of_its_partition_have_passed_is_never_fed_behind_them() {
    let mut script = Script::new();
    script.deliver(5).await;
    script.broker.refuse_produce(&[NOT_STORED]);
    let until = script.next + 20;
    let mut deliveries = Vec::new();
    let fault = async {
        while script.sink.fault().is_none() {
            let _ = timeout(Duration::from_millis(5), script.sink.woken()).await;
            script.sink.turn(Instant::now(), &mut deliveries);
            while script.next < until
                && script.sink.send(Ticket(script.next), record(script.next), Instant::now()).is_ok()
            {
                script.next += 1;
            }
        }
    };
    timeout(WITHIN, fault).await.expect("a fault, by which the session starts over");
    let delivered = |delivery: &Delivery| matches!(delivery, Delivery::Delivered { ticket, .. } if ticket.0 == 5);
    assert!(!deliveries.iter().any(delivered), "it counts as delivered");
    assert!(!script.stored(5).await.contains(&5));
}

#[tokio::test]
async fn a_partition_is_opened_anew_by_each_producer() {
    let mut script = Script::new();
    script.deliver(5).await;
    script.sink.release(&mut Vec::new()).await;
    script.broker.refuse_produce(&[Refused::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION]);
    script.deliver(20).await;
    assert_eq!(script.stored(25).await, Vec::from_iter(0..25));
}

/// A broker that takes the producer for another's, or believes a record missing before it: the producer is dead or its next
/// records would be refused, too. A new one goes on.
#[tokio::test]
async fn a_producer_that_is_fenced_or_out_of_sequence_is_replaced_and_nothing_is_lost_or_swapped() {
    let goes_on = async |error: Refused| {
        let mut script = Script::new();
        script.deliver(5).await;
        // As many as are under way: the cluster that is scripted does not refuse those behind by itself.
        script.broker.refuse_produce(&[error; 5]);
        script.deliver(20).await;
        let mut stored = script.stored(25).await;
        let mut seen = BTreeSet::new();
        stored.retain(|number| seen.insert(*number));
        assert_eq!(stored, Vec::from_iter(0..25), "{error:?}: first arrivals, in their order");
        let rebuilds = script.sink.take_rebuilds();
        assert!(!rebuilds.is_empty(), "{error:?}: the producer is still the old one");
    };
    let errors = [
        Refused::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
        Refused::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH,
        Refused::RD_KAFKA_RESP_ERR_PRODUCER_FENCED,
        Refused::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_ID_MAPPING,
        // These pass, and librdkafka gives the records back all the same.
        Refused::RD_KAFKA_RESP_ERR_THROTTLING_QUOTA_EXCEEDED,
        Refused::RD_KAFKA_RESP_ERR_FENCED_LEADER_EPOCH,
        Refused::RD_KAFKA_RESP_ERR_NETWORK_EXCEPTION,
        Refused::RD_KAFKA_RESP_ERR_UNKNOWN,
    ];
    futures_util::future::join_all(errors.map(goes_on)).await;
}
