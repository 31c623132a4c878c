//! What the sink does about a report that says no, and about reports that do not come: drain, sort out, feed again.

use super::*;

/// A purge may have to be repeated: see [`Produce::purge_queue`].
const PURGE_EVERY: Duration = Duration::from_millis(20);
/// Requests that a broker does not answer are given up after this, longer than librdkafka's own socket timeout would need
/// to notice a dead broker, so that what is in flight on a live one is never cut off.
const DRAIN_WITHIN: Duration = Duration::from_secs(70);
/// A record that is out for so long is looked after: its topic may be gone.
const PROBE_AFTER: Duration = Duration::from_secs(3);
/// Each probe is a client of its own.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// Brokers that answer and deliver nothing are believed to be slow for so long at most.
const SILENT_AT_MOST: Duration = Duration::from_secs(300);
/// Back to the usual producer after so many records without a refusal.
const ISOLATED_SUCCESSES: usize = 1_000;
pub(super) const FEED_RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

impl KafkaSink {
    pub(super) fn on_failed(&mut self, report: FailedReport, now: Instant, deliveries: &mut Vec<Delivery>) {
        let out = Place::Out(report.generation);
        let Some(sent) = self.place(report.ticket).filter(|sent| sent.place == out) else { return };
        sent.place = Place::Back;
        let partition_hash = sent.partition_hash;
        self.outstanding -= 1;
        if self.scout.returned(report.generation, report.ticket)
            && matches!(self.mode, Mode::Feeding { .. })
            && let Refusal::Poison(reason) = classify(report.code, true, report.sentence.as_deref())
        {
            // Nothing else is out, and its producer lives on: nothing needs healing.
            self.last_report = now;
            let FailedReport { ticket, code, sentence, mut record, .. } = report;
            record.partition_hash = partition_hash;
            self.tell_poison(ticket, code, sentence, reason, record, deliveries);
            return;
        }
        self.came_back(report, now);
    }

    /// Holds the record until the relay has decided.
    fn tell_poison(
        &mut self,
        ticket: usize,
        code: RDKafkaErrorCode,
        sentence: Option<String>,
        reason: &'static str,
        record: Record,
        deliveries: &mut Vec<Delivery>,
    ) {
        let mut sentence = sentence.unwrap_or_else(|| code.to_string());
        if let ("too_large", Some(limit)) = (reason, self.topics.max_message_bytes(&record.topic)) {
            sentence = format!("{sentence}; max.message.bytes of the topic is {limit}");
        }
        let copy = Box::new(record.clone());
        self.undecided.insert(ticket);
        let topic = self.topics.id(&record.topic);
        self.held.put_in_line(ticket, topic, record);
        deliveries.push(Delivery::Poison { ticket: Ticket(ticket), reason, sentence, record: copy });
    }

    pub(super) fn came_back(&mut self, report: FailedReport, now: Instant) {
        self.last_report = now;
        match &mut self.mode {
            Mode::Feeding { .. } => {
                let topic = report.record.topic.clone();
                let text = format!("a record for the topic {:?} came back: {}", &*topic, explain(&report));
                self.drain(label(report.code), text, true, now);
            }
            // A failure amid a change of producers: without a purge, what is behind it may never come back.
            Mode::Draining { purge_at, .. } if purge_at.is_none() => *purge_at = Some(now),
            Mode::Draining { .. } | Mode::Released | Mode::Broken(_) => {}
        }
        self.failed.push(report);
    }

    /// Stops feeding until nothing is out. `purge`: what was not sent comes back instead of being sent.
    pub(super) fn drain(&mut self, reason: &'static str, text: String, purge: bool, now: Instant) {
        if !matches!(self.mode, Mode::Feeding { .. }) {
            return;
        }
        if purge {
            tracing::warn!(reason, "Kafka deliveries stop to be fed again in order: {text}");
        } else {
            tracing::info!(reason, "the Kafka producer is made anew: {text}");
        }
        self.rebuilds.push(reason);
        // What comes back goes before it.
        self.held.all_join_line();
        let purge_at = purge.then_some(now);
        self.mode = Mode::Draining { text, since: now, purge_at, dropped: false };
    }

    pub(super) fn drive(&mut self, now: Instant, dropped_now: &[u32], deliveries: &mut Vec<Delivery>) {
        let (everything_back, generation) = (self.outstanding == 0, self.current);
        match &mut self.mode {
            Mode::Draining { since, purge_at, dropped, .. } => {
                if everything_back {
                    return self.finish_drain(now, deliveries);
                }
                if dropped_now.contains(&generation) {
                    let text = format!("{} records got no report from a producer that was ended", self.outstanding);
                    self.mode = Mode::Broken(text);
                    return;
                }
                if let (Some(at), Some(producer)) = (purge_at.as_mut(), &self.producer)
                    && now >= *at
                {
                    producer.purge_queue();
                    self.scout.purge_queue();
                    *at = now + PURGE_EVERY;
                }
                if !*dropped && now.saturating_duration_since(*since) > DRAIN_WITHIN {
                    *dropped = true;
                    if let Some(producer) = self.producer.take() {
                        producer.end();
                    }
                    self.scout.end();
                }
            }
            Mode::Feeding { not_before } => {
                if not_before.is_some_and(|at| now >= at) {
                    *not_before = None;
                }
                if self.producer.is_none() && not_before.is_none() {
                    self.renew(now);
                }
            }
            Mode::Released | Mode::Broken(_) => {}
        }
    }

    /// All reports are here: what failed is held again, the poison among it is told, and a new producer starts.
    pub(super) fn finish_drain(&mut self, now: Instant, deliveries: &mut Vec<Delivery>) {
        // A partition whose first record was refused must not wait for it any more.
        self.opened = Opened::default();
        let mut failed = std::mem::take(&mut self.failed);
        failed.sort_by_key(|report| report.ticket);
        if let Some(overtaken) = failed.iter().find(|report| report.inferred && self.was_overtaken(report.ticket)) {
            // Fed again it would count as the newest of its key. All of them once more, in order, leave the right one last.
            self.mode = Mode::Broken(format!(
                "later records of its partition were stored, and a record for the topic {:?} was not",
                &*overtaken.record.topic
            ));
            return;
        }
        let uncertain: BTreeSet<(Arc<str>, u32)> = failed
            .iter()
            .filter(|report| report.possibly_persisted)
            .filter_map(|report| {
                let partition = self.place(report.ticket)?.partition;
                Some((report.record.topic.clone(), partition))
            })
            .collect();
        for (name, partition) in uncertain {
            let topic = self.topics.id(&name);
            self.read_back.again(topic, &name, partition, &*self.client);
        }
        let mut passing = false;
        let (mut suspects, mut poison) = (false, false);
        for (index, report) in failed.into_iter().enumerate() {
            if planted!(LosesTheRestOfADrain) && index > 0 {
                continue;
            }
            let alone = self.was_alone(&report);
            let refusal = classify(report.code, alone, report.sentence.as_deref());
            let FailedReport { ticket, code, mut record, .. } = report;
            if let Some(sent) = self.place(ticket) {
                record.partition_hash = sent.partition_hash;
            }
            match refusal {
                Refusal::Poison(reason) => {
                    poison = true;
                    self.tell_poison(ticket, code, report.sentence, reason, record, deliveries);
                    continue;
                }
                Refusal::Suspect => {
                    suspects = true;
                    self.topics.look_again(&record.topic);
                }
                Refusal::Route => self.topics.problem(&record.topic, code, report.sentence.clone(), now),
                Refusal::Passing => passing = true,
                Refusal::Innocent => {}
            }
            let topic = self.topics.id(&record.topic);
            self.held.put_in_line(ticket, topic, record);
        }
        if suspects {
            self.isolated_left = ISOLATED_SUCCESSES;
        }
        // The counts may have changed with what went wrong, and nothing is out: the moment to take them anew.
        self.topics.apply_pending();
        self.mode = Mode::Feeding { not_before: passing.then(|| now + pause(FEED_RETRY, self.attempts)) };
        self.attempts = self.attempts.saturating_add(u32::from(passing));
        let wanted = self.kind();
        let reusable = |producer: &dyn Produce| producer.kind() == Kind::Isolating && !producer.is_dead();
        // A producer for isolation survives a refusal: a storm of poison costs no new one each. It does not survive anything
        // else, above all not its own silence.
        let proven = poison && !passing && self.producer.as_deref().is_some_and(reusable);
        if wanted != Kind::Isolating || !proven {
            self.renew(now);
        }
    }

    /// Whether a later record of the same partition is settled already.
    fn was_overtaken(&self, ticket: usize) -> bool {
        let Some(index) = ticket.checked_sub(self.first_ticket) else { return false };
        let Some(own) = self.sent.get(index) else { return false };
        let mut later = self.sent.iter().skip(index + 1);
        later.any(|sent| sent.place == Place::Settled && (sent.topic, sent.partition) == (own.topic, own.partition))
    }

    pub(super) fn was_alone(&self, report: &FailedReport) -> bool {
        match self.producer.as_ref().map(|producer| producer.kind()) {
            _ if planted!(BlamesTheBatch) => true,
            Some(Kind::Gapless { batch_size }) => weight(&report.record) >= batch_size,
            Some(Kind::Isolating) => true,
            None => false,
        }
    }

    pub(super) fn renew(&mut self, now: Instant) {
        if let Some(old) = self.producer.take() {
            old.end();
        }
        self.scout.end();
        self.opened = Opened::default();
        match self.create_producer() {
            Ok(producer) => self.producer = Some(producer),
            Err(error) => {
                tracing::warn!(%error, "a Kafka producer could not be made; trying again");
                self.error = Some(error.to_string());
                self.mode = Mode::Feeding { not_before: Some(now + pause(FEED_RETRY, self.attempts)) };
                self.attempts = self.attempts.saturating_add(1);
            }
        }
    }

    /// Lets go of everything, because another relay may take the slot: what was not sent is taken back, what was sent gets
    /// two seconds to be confirmed, then the producer ends. Afterwards nothing is out or held and a fresh producer stands
    /// ready; tickets start over. Deliveries that still came are added.
    pub async fn release(&mut self, deliveries: &mut Vec<Delivery>) {
        let until = Instant::now() + RELEASE_WITHIN;
        self.mode = Mode::Released;
        while self.outstanding > 0 && Instant::now() < until && self.producer.is_some() {
            if let Some(producer) = &self.producer {
                producer.purge_queue();
            }
            self.scout.purge_queue();
            let _ = tokio::time::timeout(PURGE_EVERY, self.mailbox.woken()).await;
            self.turn(Instant::now(), deliveries);
        }
        self.mode = Mode::Feeding { not_before: None };
        if planted!(CountsWhatIsLetGo) {
            let out = self.sent.iter().enumerate().filter(|(_, sent)| matches!(sent.place, Place::Out(_)));
            deliveries.extend(out.map(|(index, sent)| Delivery::Delivered {
                ticket: Ticket(self.first_ticket + index),
                topic: sent.topic,
                bytes: sent.bytes,
                publish_latency: Duration::ZERO,
            }));
        }
        self.sent.clear();
        self.outstanding = 0;
        self.held = Lanes::default();
        self.failed.clear();
        self.undecided.clear();
        self.frozen_at = None;
        self.isolated_left = 0;
        self.attempts = 0;
        self.topics.apply_pending();
        self.renew(Instant::now());
    }

    pub(super) fn watch_silence(&mut self, now: Instant) {
        // Also where only one partition gets no report, and others do.
        let oldest = self.sent.iter().find(|sent| matches!(sent.place, Place::Out(_)));
        let silent = oldest.map_or(Duration::ZERO, |sent| now.saturating_duration_since(sent.at));
        let suspicious = matches!(self.mode, Mode::Feeding { .. }) && silent > PROBE_AFTER;
        if suspicious && !self.probing && self.probe_at.is_none_or(|at| now >= at) {
            self.probing = true;
            // Only what is waited for: a topic that nobody writes to may be gone for good.
            let out = self.sent.iter().filter(|sent| matches!(sent.place, Place::Out(_)));
            let topics: BTreeSet<Arc<str>> = out.map(|sent| self.topics.name(sent.topic)).collect();
            self.client.ask(Ask::Probe(topics.into_iter().collect()));
        }
    }

    pub(super) fn on_answer(&mut self, answer: Answer, now: Instant) {
        match answer {
            Answer::Cluster(identity) => {
                if identity.is_ok() {
                    self.connected = true;
                    self.error = None;
                }
                self.cluster = Some(identity);
            }
            Answer::Topic { name, facts } => {
                self.topics.answered(&name, facts, now, self.outstanding);
                let topic = self.topics.id(&name);
                self.held.wake(topic);
            }
            Answer::Probe(Probed { healthy, missing, short }) => {
                self.probing = false;
                self.short = short;
                self.probe_at = Some(now + PROBE_EVERY);
                if let Some(topic) = missing.filter(|_| self.outstanding > 0) {
                    // librdkafka waits half a minute before it says so, and tries again all the while. Should the topic be made
                    // again meanwhile, the broker knows nothing of this producer there: see `opened`.
                    self.topics.missing(&topic, now);
                    self.drain("route", format!("the topic {:?} is gone", &*topic), true, now);
                }
                let silent = now.saturating_duration_since(self.last_report);
                // Where a partition refuses all, a new producer is refused as well, and what only the leader has stored comes
                // twice.
                let patience = if self.short.is_some() { SILENT_AT_MOST } else { self.silent_after };
                if healthy && self.outstanding > 0 && silent > patience {
                    let text = format!(
                        "no delivery report for {} s although the brokers answer a new client",
                        silent.as_secs()
                    );
                    self.drain("stalled", text, true, now);
                    // A broker that is only slow must not cost a rebuild every ten seconds.
                    self.silent_after = (self.silent_after * 2).min(SILENT_AT_MOST);
                }
            }
        }
    }
}

fn explain(report: &FailedReport) -> String {
    match &report.sentence {
        Some(sentence) => format!("{} ({sentence})", report.code),
        None => report.code.to_string(),
    }
}

fn label(code: RDKafkaErrorCode) -> &'static str {
    match classify(code, true, Some("")) {
        Refusal::Poison(reason) => reason,
        Refusal::Route => "route",
        Refusal::Suspect | Refusal::Innocent => "batch",
        Refusal::Passing => "producer",
    }
}
