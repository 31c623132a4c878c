//! The thread that asks the cluster questions, because every answer blocks: who are you, which partitions has this topic,
//! how large a record does it take, are you there at all. The loop sends an [`Ask`] and goes on; the [`Answer`] comes
//! through the mailbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};

use crate::config::Config;
use crate::sink::desk::{ClusterIdentity, Desk, Probed, TopicFacts, TopicProblem};
use crate::sink::producer::Mailbox;

/// Partitions added to a known topic are seen within this.
const REFRESH_EVERY: Duration = Duration::from_secs(60);

/// Topics that are asked for together: enough to be quick, few enough that the first answers do not wait for the last.
const TOPICS_AT_ONCE: usize = 1_000;

/// A question to the cluster.
#[derive(Debug)]
pub enum Ask {
    /// Is it there, and which cluster is it?
    Cluster,
    /// Partitions and limits of a topic; may create it, as `topics.create` says.
    Topic(Arc<str>),
    /// Does a *fresh* client see leaders for these topics? (A producer can hang while the broker is well.)
    Probe(Vec<Arc<str>>),
}

/// What the cluster said.
#[derive(Debug)]
pub enum Answer {
    Cluster(Result<ClusterIdentity, String>),
    Topic {
        name: Arc<str>,
        facts: Result<TopicFacts, TopicProblem>,
    },
    /// Whether everything is there that is needed to deliver.
    Probe(Probed),
}

/// The loop's end of the thread. The thread ends when this is dropped.
pub struct Librarian {
    questions: mpsc::Sender<Ask>,
}

impl Librarian {
    /// Starts the thread. Fails on settings that librdkafka refuses.
    pub fn start(config: &Config, mailbox: Arc<Mailbox>) -> KafkaResult<Librarian> {
        let desk = Desk::open(config, &mailbox)?;
        let (questions, inbox) = mpsc::channel();
        let config = config.clone();
        let work = move || serve(desk, &config, &inbox, &mailbox);
        thread::Builder::new()
            .name("kafka-librarian".into())
            .spawn(work)
            .map_err(|error| KafkaError::ClientCreation(format!("no thread could be started: {error}")))?;
        Ok(Librarian { questions })
    }

    pub fn ask(&self, question: Ask) {
        // The thread only ends with this handle.
        let _ = self.questions.send(question);
    }
}

/// Whether no broker answered, rather than one that said no.
fn is_silence(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(code, Code::OperationTimedOut | Code::BrokerTransportFailure | Code::AllBrokersDown | Code::Resolve)
}

/// A client may hang for good after a broker that froze, silently: one that got no answer is not asked again.
fn renew(desk: &mut Desk, config: &Config, mailbox: &Arc<Mailbox>) {
    if let Ok(fresh) = Desk::open(config, mailbox) {
        *desk = fresh;
    }
}

fn serve(mut desk: Desk, config: &Config, inbox: &mpsc::Receiver<Ask>, mailbox: &Arc<Mailbox>) {
    let mut known: BTreeMap<Arc<str>, TopicFacts> = BTreeMap::new();
    let mut refresh_at = Instant::now() + REFRESH_EVERY;
    // Came while topics were gathered.
    let mut next = None;
    loop {
        let question = match next.take() {
            Some(question) => Ok(question),
            None => inbox.recv_timeout(refresh_at.saturating_duration_since(Instant::now())),
        };
        match question {
            Ok(Ask::Cluster) => {
                let answer = desk.cluster();
                if answer.is_err() {
                    renew(&mut desk, config, mailbox);
                }
                mailbox.put(|inbox| inbox.answers.push(Answer::Cluster(answer)));
            }
            Ok(Ask::Topic(name)) => {
                // A relay that starts asks for all its topics within a moment.
                let mut names = vec![name];
                while next.is_none() && names.len() < TOPICS_AT_ONCE {
                    match inbox.try_recv() {
                        Ok(Ask::Topic(name)) => names.push(name),
                        Ok(other) => next = Some(other),
                        Err(_) => break,
                    }
                }
                let mut tell = |name: Arc<str>, facts: Result<TopicFacts, TopicProblem>| {
                    match &facts {
                        Ok(facts) => known.insert(name.clone(), facts.clone()),
                        Err(_) => known.remove(&name),
                    };
                    mailbox.put(|inbox| inbox.answers.push(Answer::Topic { name, facts }));
                };
                if names.len() > 1
                    && let Ok(there) = desk.topics_there(&names)
                {
                    let mut others = Vec::new();
                    for (name, facts) in names.into_iter().zip(there) {
                        match facts {
                            Some(facts) => tell(name, Ok(facts)),
                            None => others.push(name),
                        }
                    }
                    names = others;
                }
                for name in names {
                    let facts = desk.topic(&name);
                    let silence = facts.as_ref().is_err_and(|problem| is_silence(problem.code));
                    tell(name, facts);
                    if silence {
                        renew(&mut desk, config, mailbox);
                    }
                }
            }
            Ok(Ask::Probe(topics)) => {
                let probed = desk.probe(&topics);
                mailbox.put(|inbox| inbox.answers.push(Answer::Probe(probed)));
            }
            Err(RecvTimeoutError::Timeout) => {
                refresh_at = Instant::now() + REFRESH_EVERY;
                if known.is_empty() {
                    continue;
                }
                match desk.partition_counts() {
                    Ok(counts) => {
                        // A topic that cannot be seen now keeps its facts: the producer will say what is wrong with it.
                        let more = |(name, facts): (&Arc<str>, &mut TopicFacts)| {
                            let partitions = *counts.get(name).filter(|counted| **counted != facts.partitions)?;
                            facts.partitions = partitions;
                            Some(Answer::Topic { name: name.clone(), facts: Ok(facts.clone()) })
                        };
                        let changed: Vec<Answer> = known.iter_mut().filter_map(more).collect();
                        if !changed.is_empty() {
                            mailbox.put(|inbox| inbox.answers.extend(changed));
                        }
                    }
                    Err(problem) if is_silence(problem.code) => renew(&mut desk, config, mailbox),
                    Err(_) => {}
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
