/* Producers that commit one transaction after the other, by librdkafka.

   transact ADDRESS TOPIC PARTITIONS PRODUCERS RECORDS WARM_UP_S SECONDS

   Prints "measuring" when every producer has been at work for WARM_UP_S, and SECONDS later, as JSON, how many
   transactions were committed meanwhile. Records have 100 B; a producer writes to one partition. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "rdkafka.h"

#define VALUE_SIZE 100
#define TIMEOUT_MS 60000

static const char *address, *topic;
static int partitions, producers, records;
static atomic_long committed;
static atomic_int running = 1;
static pthread_barrier_t ready;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void check(const char *what, rd_kafka_error_t *error) {
    if (error)
        fail(what, rd_kafka_error_string(error));
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char why[512];
    if (rd_kafka_conf_set(conf, name, value, why, sizeof(why)) != RD_KAFKA_CONF_OK)
        fail(name, why);
}

/* A commit waits for reports; where nobody asks for them librdkafka looks every 10 ms whether all have come. */
static void delivered(rd_kafka_t *producer, const rd_kafka_message_t *message, void *opaque) {
    (void)producer, (void)message, (void)opaque;
}

static void *produce(void *argument) {
    int number = (int)(long)argument;
    char why[512], id[256], value[VALUE_SIZE] = {0};
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    snprintf(id, sizeof(id), "%s-%d", topic, number);
    set(conf, "bootstrap.servers", address);
    set(conf, "transactional.id", id);
    set(conf, "linger.ms", "0");
    set(conf, "log_level", "3");
    rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    rd_kafka_t *producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof(why));
    if (!producer)
        fail("rd_kafka_new", why);
    check("init_transactions", rd_kafka_init_transactions(producer, TIMEOUT_MS));
    pthread_barrier_wait(&ready);
    while (atomic_load(&running)) {
        check("begin_transaction", rd_kafka_begin_transaction(producer));
        for (int record = 0; record < records; record++) {
            rd_kafka_resp_err_t code = rd_kafka_producev(
                producer, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_PARTITION(number % partitions),
                RD_KAFKA_V_VALUE(value, sizeof(value)), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_END);
            if (code)
                fail("produce", rd_kafka_err2str(code));
        }
        check("commit_transaction", rd_kafka_commit_transaction(producer, TIMEOUT_MS));
        atomic_fetch_add(&committed, 1);
    }
    rd_kafka_destroy(producer);
    return NULL;
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

int main(int count, char **arguments) {
    if (count != 8) {
        fprintf(stderr, "usage: transact ADDRESS TOPIC PARTITIONS PRODUCERS RECORDS WARM_UP_S SECONDS\n");
        return 2;
    }
    address = arguments[1], topic = arguments[2];
    partitions = atoi(arguments[3]), producers = atoi(arguments[4]), records = atoi(arguments[5]);
    double warm_up_s = atof(arguments[6]), seconds = atof(arguments[7]);
    pthread_t *threads = calloc(producers, sizeof(*threads));
    pthread_barrier_init(&ready, NULL, producers + 1);
    for (long number = 0; number < producers; number++)
        pthread_create(&threads[number], NULL, produce, (void *)number);
    pthread_barrier_wait(&ready);
    usleep((useconds_t)(warm_up_s * 1e6));
    printf("measuring\n");
    fflush(stdout);
    double began = now_s();
    long before = atomic_load(&committed);
    usleep((useconds_t)(seconds * 1e6));
    long done = atomic_load(&committed) - before;
    printf("{\"transactions\": %ld, \"seconds\": %.6f}\n", done, now_s() - began);
    fflush(stdout);
    atomic_store(&running, 0);
    for (int number = 0; number < producers; number++)
        pthread_join(threads[number], NULL);
    return 0;
}
