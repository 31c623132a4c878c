//! The names of librdkafka's properties, as its CONFIGURATION.md of version 2.12 lists them. A name that is not here is
//! refused with the nearest one; a newer librdkafka needs its new names added.

/// A producer has these.
pub const PRODUCER: &str = "
    acks allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
    batch.num.messages batch.size bootstrap.servers broker.address.family broker.address.ttl
    broker.version.fallback builtin.features client.dns.lookup client.id client.rack compression.codec
    compression.level compression.type connections.max.idle.ms debug delivery.report.only.error
    delivery.timeout.ms enable.gapless.guarantee enable.idempotence enable.metrics.push enable.random.seed
    enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification enabled_events https.ca.location
    https.ca.pem internal.termination.signal linger.ms log.connection.close log.queue log.thread.name log_level
    max.in.flight max.in.flight.requests.per.connection message.copy.max.bytes message.max.bytes
    message.send.max.retries message.timeout.ms metadata.broker.list metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy partitioner plugin.library.paths
    produce.offset.report queue.buffering.backpressure.threshold queue.buffering.max.kbytes
    queue.buffering.max.messages queue.buffering.max.ms queuing.strategy receive.message.max.bytes
    reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms request.required.acks
    request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab
    sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal
    sasl.kerberos.service.name sasl.mechanism sasl.mechanisms sasl.oauthbearer.assertion.algorithm
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
    sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
    sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
    sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
    sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
    sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
    sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.grant.type
    sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method sasl.oauthbearer.scope
    sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol socket.blocking.max.ms
    socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails socket.nagle.disable
    socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms ssl.ca.certificate.stores
    ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location
    ssl.curves.list ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location ssl.key.location
    ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list
    statistics.interval.ms sticky.partitioning.linger.ms topic.blacklist topic.metadata.propagation.max.ms
    topic.metadata.refresh.fast.cnt topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
    topic.metadata.refresh.sparse transaction.timeout.ms transactional.id
";

/// Only a consumer has these.
pub const CONSUMER: &str = "
    auto.commit.enable auto.commit.interval.ms auto.offset.reset check.crcs consume.callback.max.messages
    coordinator.query.interval.ms enable.auto.commit enable.auto.offset.store enable.partition.eof
    fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms
    fetch.wait.max.ms group.id group.instance.id group.protocol group.protocol.type group.remote.assignor
    heartbeat.interval.ms isolation.level max.partition.fetch.bytes max.poll.interval.ms offset.store.method
    offset.store.path offset.store.sync.interval.ms partition.assignment.strategy queued.max.messages.kbytes
    queued.min.messages session.timeout.ms
";

/// Only a program can set these: they are functions and pointers.
pub const PROGRAM: &str = "
    background_event_cb closesocket_cb connect_cb consume_cb default_topic_conf dr_cb dr_msg_cb error_cb
    interceptors log_cb msg_order_cmp oauthbearer_token_refresh_cb offset_commit_cb opaque open_cb
    partitioner_cb rebalance_cb resolve_cb socket_cb ssl.certificate.verify_cb ssl_ca ssl_certificate
    ssl_engine_callback_data ssl_key stats_cb throttle_cb
";
