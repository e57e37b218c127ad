"""Settings that Apache Kafka (0.7 to 4.3) has and kbroker does not read, each group with its reason.

A server.properties may contain them; `start` logs them once. A test compares the names with `definitions.py`.
"""

from __future__ import annotations

# Reason -> names. "Not yet": the project has planned the work. "Not needed": nothing here corresponds to the setting.
_REASONS: dict[str, str] = {
    "not yet: parts of a cluster that its members do without": """
        zookeeper.set.acl zookeeper.max.in.flight.requests zookeeper.clientCnxnSocket zookeeper.ssl.client.enable
        zookeeper.ssl.cipher.suites zookeeper.ssl.crl.enable zookeeper.ssl.enabled.protocols
        zookeeper.ssl.endpoint.identification.algorithm zookeeper.ssl.keystore.location
        zookeeper.ssl.keystore.password zookeeper.ssl.keystore.type zookeeper.ssl.ocsp.enable zookeeper.ssl.protocol
        zookeeper.ssl.truststore.location zookeeper.ssl.truststore.password zookeeper.ssl.truststore.type
        zookeeper.sync.time.ms zk.synctime.ms
        controller.message.queue.size replica.lag.max.messages
        replica.socket.receive.buffer.bytes
        unclean.leader.election.interval.ms
        alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds
        num.replica.alter.log.dirs.threads
        socket.connection.setup.timeout.ms socket.connection.setup.timeout.max.ms
        zookeeper.metadata.migration.enable zookeeper.metadata.migration.min.batch.size""",
    "not yet: TLS, SASL and access control": """
        authorizer.class.name super.users allow.everyone.if.no.acl.found early.start.listeners
        connection.failed.authentication.delay.ms connections.max.reauth.ms principal.builder.class
        delegation.token.expiry.check.interval.ms delegation.token.expiry.time.ms delegation.token.master.key
        delegation.token.max.lifetime.ms delegation.token.secret.key sasl.enabled.mechanisms sasl.jaas.config
        sasl.client.callback.handler.class sasl.server.callback.handler.class sasl.server.max.receive.size
        sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
        sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
        sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
        sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules
        sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
        sasl.mechanism.controller.protocol sasl.mechanism.inter.broker.protocol sasl.oauthbearer.clock.skew.seconds
        sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
        sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
        sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
        sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
        sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
        sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
        sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
        sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
        sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
        sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
        sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.jwt.retriever.class
        sasl.oauthbearer.jwt.validator.class security.providers ssl.allow.dn.changes ssl.allow.san.changes
        ssl.cipher.suites ssl.client.auth ssl.enabled.protocols ssl.endpoint.identification.algorithm
        ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain
        ssl.keystore.key ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.principal.mapping.rules
        ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
        ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type""",
    "not yet: quotas": """
        client.quota.callback.class controller.quota.window.num controller.quota.window.size.seconds quota.window.num
        quota.window.size.seconds quota.producer.default quota.consumer.default max.connection.creation.rate
        queued.max.request.bytes""",
    "not yet: transactions in two phases (KIP-939)": """
        transaction.two.phase.commit.enable""",
    "not needed: what begins a transaction is told when the one before has ended": """
        add.partitions.to.txn.retry.backoff.ms""",
    "not needed: who has a request to a group carries it out": """
        group.coordinator.append.linger.ms group.coordinator.background.threads
        group.coordinator.cached.buffer.max.bytes group.coordinator.new.enable group.coordinator.threads""",
    "not yet: share groups (KIP-932) and streams groups (KIP-1071)": """
        group.share.assignment.interval.ms group.share.assignors group.share.delivery.count.limit group.share.enable
        group.share.heartbeat.interval.ms group.share.initialize.retry.interval.ms
        group.share.max.assignment.interval.ms group.share.max.delivery.count.limit group.share.max.groups
        group.share.max.heartbeat.interval.ms group.share.max.partition.max.record.locks
        group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms group.share.max.share.sessions
        group.share.max.size group.share.min.assignment.interval.ms group.share.min.delivery.count.limit
        group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks
        group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
        group.share.partition.max.record.locks group.share.persister.class.name group.share.record.lock.duration.ms
        group.share.session.timeout.ms group.streams.assignment.interval.ms group.streams.heartbeat.interval.ms
        group.streams.initial.rebalance.delay.ms group.streams.max.assignment.interval.ms
        group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms group.streams.max.size
        group.streams.max.standby.replicas group.streams.min.assignment.interval.ms
        group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms
        group.streams.num.standby.replicas group.streams.session.timeout.ms
        share.coordinator.append.linger.ms share.coordinator.cached.buffer.max.bytes
        share.coordinator.cold.partition.snapshot.interval.ms share.coordinator.load.buffer.size
        share.coordinator.snapshot.update.records.per.snapshot share.coordinator.state.topic.compression.codec
        share.coordinator.state.topic.min.isr share.coordinator.state.topic.num.partitions
        share.coordinator.state.topic.prune.interval.ms share.coordinator.state.topic.replication.factor
        share.coordinator.state.topic.segment.bytes share.coordinator.threads share.coordinator.write.timeout.ms
        share.fetch.purgatory.purge.interval.requests""",
    "not needed: there is no KRaft controller": """
        process.roles controller.quorum.voters controller.quorum.bootstrap.servers controller.quorum.append.linger.ms
        controller.quorum.auto.join.enable controller.quorum.election.backoff.max.ms
        controller.quorum.election.timeout.ms controller.quorum.fetch.max.bytes
        controller.quorum.fetch.snapshot.max.bytes controller.quorum.fetch.timeout.ms
        controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms
        controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
        broker.heartbeat.interval.ms broker.session.timeout.ms initial.broker.registration.timeout.ms
        eligible.leader.replicas.enable metadata.log.dir metadata.log.max.record.bytes.between.snapshots
        metadata.log.max.snapshot.interval.ms metadata.log.segment.bytes metadata.log.segment.min.bytes
        metadata.log.segment.ms metadata.max.idle.interval.ms metadata.max.retention.bytes metadata.max.retention.ms
        internal.metadata.delete.delay.millis internal.metadata.log.segment.bytes
        internal.metadata.max.batch.size.in.bytes server.max.startup.time.ms log.dir.failure.timeout.ms
        unstable.api.versions.enable unstable.feature.versions.enable""",
    "not needed: metrics are served to Prometheus (kbroker.http.address)": """
        metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
        auto.include.jmx.reporter kafka.metrics.polling.interval.secs kafka.metrics.reporters
        kafka.csv.metrics.dir kafka.csv.metrics.reporter.enabled monitoring.period.secs telemetry.max.bytes""",
    "not needed: classes of a JVM, or parts of Kafka that kbroker does without": """
        alter.config.policy.class.name create.topic.policy.class.name config.providers background.threads
        password.encoder.cipher.algorithm password.encoder.iterations password.encoder.key.length
        password.encoder.keyfactory.algorithm password.encoder.old.secret password.encoder.secret
        delete.records.purgatory.purge.interval.requests fetch.purgatory.purge.interval.requests
        producer.purgatory.purge.interval.requests log.initial.task.delay.ms offsets.commit.required.acks
        cordoned.log.dirs follower.fetch.last.tiered.offset.enable max.tcp.connections
        log.message.format.version""",
    "not needed: there is no tiered storage": """
        log.local.retention.bytes log.local.retention.ms remote.fetch.max.wait.ms
        remote.list.offsets.request.timeout.ms remote.log.index.file.cache.total.size.bytes
        remote.log.index.file.cache.ttl.ms remote.log.manager.copier.thread.pool.size
        remote.log.manager.copy.max.bytes.per.second remote.log.manager.copy.quota.window.num
        remote.log.manager.copy.quota.window.size.seconds remote.log.manager.expiration.thread.pool.size
        remote.log.manager.fetch.max.bytes.per.second remote.log.manager.fetch.quota.window.num
        remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.follower.thread.pool.size
        remote.log.manager.task.interval.ms remote.log.manager.task.retry.backoff.max.ms
        remote.log.manager.task.retry.backoff.ms remote.log.manager.task.retry.jitter
        remote.log.manager.thread.pool.size remote.log.metadata.custom.metadata.max.bytes
        remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
        remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
        remote.log.reader.max.pending.tasks remote.log.reader.threads remote.log.storage.manager.class.name
        remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix
        remote.log.storage.system.enable""",
    "not needed: settings of single topics are given to the topic": """
        log.cleanup.policy.per.topic log.file.time.ms log.flush.interval.ms.per.topic
        log.flush.intervals.ms.per.topic log.retention.bytes.per.topic log.retention.hours.per.topic
        log.roll.hours.per.topic log.segment.bytes.per.topic topic.file.size topic.flush.intervals.ms
        topic.log.file.size topic.log.retention.hours topic.log.retention.size topic.log.roll.hours
        topic.partition.count.map""",
}

NOT_READ: dict[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}
