//! What an error on a delivery report means. Three classes: the record's own fault (*poison*), the topic's (*route*), and
//! everything else, which is fed again and never set aside. A refusal that came back for a whole batch names its culprit
//! only where the record was alone in it, or where the broker's own sentence tells it from its neighbours.

use rdkafka::types::RDKafkaErrorCode;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The record can never be stored as it is. The name is the label of the metric.
    Poison(&'static str),
    /// One record of the batch is poison, and nothing tells which: they must be sent one by one.
    Suspect,
    /// The topic does not take records now.
    Route,
    /// Came back because we asked for it, or because a neighbour was refused: not at fault.
    Innocent,
    /// The producer, the connection or the broker: passing, or mended by a new producer.
    Passing,
}

/// How the broker's log layer excuses the innocent records of a refused batch.
const PART_OF_A_BATCH: &str = "part of a batch which had";

/// `alone`: no other record was in the batch. `sentence`: the broker's own text for this record, if it sent one.
pub fn classify(code: RDKafkaErrorCode, alone: bool, sentence: Option<&str>) -> Refusal {
    use RDKafkaErrorCode as Code;
    let proven = |reason| if alone { Refusal::Poison(reason) } else { Refusal::Suspect };
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => proven("too_large"),
        Code::InvalidRecord | Code::InvalidTimestamp => match sentence {
            Some(text) if text.contains(PART_OF_A_BATCH) => Refusal::Innocent,
            Some(text) if !text.is_empty() => Refusal::Poison("invalid_record"),
            _ => proven("invalid_record"),
        },
        Code::InvalidDifferentRecord | Code::PurgeQueue | Code::PurgeInflight => Refusal::Innocent,
        Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownPartition
        | Code::InvalidTopic
        | Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::PolicyViolation
        | Code::UnsupportedForMessageFormat
        | Code::UnsupportedCompressionType => Refusal::Route,
        // New codes of librdkafka land here too: to feed a record again is always safe.
        _ => Refusal::Passing,
    }
}

/// How a remedy ends where nothing more is to be done.
pub const GOES_ON: &str = "it goes on by itself";

/// What a person can do about a topic that does not take records.
pub fn route_remedy(code: RDKafkaErrorCode, topic: &str, brokers: &str) -> String {
    use RDKafkaErrorCode as Code;
    match code {
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition => format!(
            "create the topic {topic:?} (kafka-topics.sh --bootstrap-server {brokers} --create --topic {topic}), or let walpost do it with \
             topics.create = {{ partitions = 6, replication = 3 }}; it goes on by itself"
        ),
        Code::TopicAuthorizationFailed => {
            format!("grant walpost's principal WRITE and DESCRIBE on the topic {topic:?}; it goes on by itself")
        }
        Code::ClusterAuthorizationFailed => {
            "grant walpost's principal IDEMPOTENT_WRITE on the cluster; it goes on by itself".to_owned()
        }
        Code::PolicyViolation => format!("the broker's policy refuses records for {topic:?}: change it or the record"),
        Code::UnsupportedCompressionType | Code::UnsupportedForMessageFormat => {
            format!("set compression.type to one that the broker of {topic:?} knows, and restart walpost")
        }
        _ => format!("look at the broker's log for the topic {topic:?}; it goes on by itself"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RDKafkaErrorCode as Code;

    #[test]
    fn a_refused_batch_names_no_culprit_by_itself() {
        assert_eq!(classify(Code::MessageSizeTooLarge, true, None), Refusal::Poison("too_large"));
        assert_eq!(classify(Code::MessageSizeTooLarge, false, None), Refusal::Suspect);
        assert_eq!(classify(Code::InvalidRecord, false, None), Refusal::Suspect);
    }

    #[test]
    fn the_brokers_sentence_tells_the_culprit_from_its_neighbours() {
        let culprit = "Compacted topic cannot accept message without key in topic partition a-0.";
        let innocent = "Failed to append record because it was part of a batch which had one more more invalid records";
        assert_eq!(classify(Code::InvalidRecord, false, Some(culprit)), Refusal::Poison("invalid_record"));
        assert_eq!(classify(Code::InvalidRecord, false, Some(innocent)), Refusal::Innocent);
        assert_eq!(classify(Code::InvalidDifferentRecord, true, None), Refusal::Innocent);
    }

    #[test]
    fn what_may_pass_is_never_poison() {
        for code in [
            Code::NetworkException,
            Code::UnknownProducerId,
            Code::OutOfOrderSequenceNumber,
            Code::Fatal,
            Code::GaplessGuarantee,
            Code::ThrottlingQuotaExceeded,
            Code::MessageTimedOut,
            Code::Unknown,
        ] {
            assert_eq!(classify(code, true, Some("text")), Refusal::Passing, "{code:?}");
        }
        assert_eq!(classify(Code::PurgeQueue, true, None), Refusal::Innocent);
        assert_eq!(classify(Code::TopicAuthorizationFailed, true, None), Refusal::Route);
    }
}
