// SPDX-License-Identifier: Apache-2.0
/*
 * Uses /dev/vramN hard and compares every byte. Needs nothing but libc.
 *
 *   vram_soak zeros MIB [DEVICE]
 *     Allocates that much and prints how many of its bytes are not zero.
 *   vram_soak random SECONDS SEED PROCESSES THREADS MIB [DEVICE]
 *     Each thread keeps a few allocations of odd sizes and a copy of each in
 *     memory. It allocates, writes, reads, copies, fills and frees at random,
 *     from and to addresses of any alignment, on both sides, and compares.
 *     Each process stays below MIB of device memory.
 *
 * The exit status is 0 if all went well.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "vram_ioctl.h"

#define MIB (1024UL * 1024)
#define SLOTS 6
/* Buffers begin up to this many bytes behind a page boundary. */
#define SKEW 4096

struct slot {
	uint64_t address;
	size_t length;
	uint8_t *shadow;
};

struct worker {
	pthread_t thread;
	int fd;
	uint32_t stream;
	uint64_t random;
	uint64_t budget;
	double seconds;
	uint64_t operations;
	uint64_t bytes;
	struct slot slots[SLOTS];
};

static const char *path = "/dev/vram0";

static void fail(const char *what)
{
	printf("%s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t next_random(struct worker *worker)
{
	worker->random ^= worker->random << 13;
	worker->random ^= worker->random >> 7;
	worker->random ^= worker->random << 17;
	return worker->random;
}

static uint64_t below(struct worker *worker, uint64_t limit)
{
	return next_random(worker) % limit;
}

/* Sizes at which something may begin or end, and any other. */
static size_t random_length(struct worker *worker, size_t most)
{
	static const size_t edges[] = {
		1, 2, 255, 256, 257, 4095, 4096, 4097, 65535, MIB - 1, MIB,
		3 * MIB + 1, 4 * MIB, 4 * MIB + 1,
	};
	size_t length = edges[below(worker, sizeof(edges) / sizeof(edges[0]))];

	if (below(worker, 2))
		length = 1 + below(worker, 1UL << (4 + below(worker, 20)));
	return length < most ? length : most;
}

static void transfer(struct worker *worker, uint64_t address, void *user,
		     size_t length, uint32_t direction)
{
	struct vram_ioctl_transfer args = {
		.device_address = address,
		.user_pointer = (uintptr_t)user,
		.length = length,
		.direction = direction,
		.stream = worker->stream,
	};

	if (ioctl(worker->fd, VRAM_IOCTL_TRANSFER, &args))
		fail(direction == VRAM_TO_DEVICE ? "write" : "read");
	if (args.moved != length) {
		printf("moved %llu bytes of %zu\n",
		       (unsigned long long)args.moved, length);
		exit(1);
	}
	worker->bytes += length;
}

static void compare(struct worker *worker, const struct slot *slot,
		    size_t offset, size_t length)
{
	uint8_t *buffer = malloc(length + SKEW);
	uint8_t *skewed = buffer + below(worker, SKEW);
	size_t i;

	memset(skewed, ~slot->shadow[offset], length);
	transfer(worker, slot->address + offset, skewed, length,
		 VRAM_FROM_DEVICE);
	if (memcmp(skewed, slot->shadow + offset, length)) {
		for (i = 0; skewed[i] == slot->shadow[offset + i]; i++)
			;
		printf("byte %zu of %zu at 0x%llx is %02x, expected %02x (stream %u)\n",
		       offset + i, slot->length,
		       (unsigned long long)slot->address, skewed[i],
		       slot->shadow[offset + i], worker->stream);
		exit(1);
	}
	free(buffer);
}

static void allocate(struct worker *worker, struct slot *slot)
{
	struct vram_ioctl_alloc args = {};
	uint64_t used = 0;
	size_t i;

	for (i = 0; i < SLOTS; i++)
		used += worker->slots[i].length;
	if (used >= worker->budget)
		return;
	args.length = random_length(worker, worker->budget - used);
	args.alignment = below(worker, 2) ? 0 : 256UL << below(worker, 14);
	if (ioctl(worker->fd, VRAM_IOCTL_ALLOC, &args))
		fail("alloc");
	slot->address = args.address;
	slot->length = args.length;
	slot->shadow = calloc(1, args.length);
	if (!slot->shadow)
		fail("calloc");
	/* Whoever had it before, it is zero now. */
	compare(worker, slot, 0, slot->length);
}

static void release(struct worker *worker, struct slot *slot)
{
	struct vram_ioctl_free args = { .address = slot->address };

	compare(worker, slot, 0, slot->length);
	if (ioctl(worker->fd, VRAM_IOCTL_FREE, &args))
		fail("free");
	free(slot->shadow);
	memset(slot, 0, sizeof(*slot));
}

static void write_some(struct worker *worker, struct slot *slot, size_t offset,
		       size_t length)
{
	uint8_t *buffer = malloc(length + SKEW);
	uint8_t *skewed = buffer + below(worker, SKEW);
	uint64_t seed = next_random(worker);
	size_t i;

	for (i = 0; i < length; i++) {
		seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
		skewed[i] = seed >> 56;
	}
	transfer(worker, slot->address + offset, skewed, length, VRAM_TO_DEVICE);
	memcpy(slot->shadow + offset, skewed, length);
	free(buffer);
}

static void copy_some(struct worker *worker, struct slot *to, size_t offset,
		      size_t length)
{
	struct slot *from = &worker->slots[below(worker, SLOTS)];
	struct vram_ioctl_copy args = { .stream = worker->stream };
	size_t source;

	if (!from->length || from == to)
		return;
	if (length > from->length)
		length = from->length;
	source = below(worker, from->length - length + 1);
	args.destination = to->address + offset;
	args.source = from->address + source;
	args.length = length;
	if (ioctl(worker->fd, VRAM_IOCTL_COPY, &args))
		fail("copy");
	worker->bytes += length;
	memcpy(to->shadow + offset, from->shadow + source, length);
}

static void fill_some(struct worker *worker, struct slot *slot, size_t offset,
		      size_t length)
{
	struct vram_ioctl_fill args = { .stream = worker->stream };
	uint32_t width = 1 << below(worker, 3);
	uint32_t pattern = next_random(worker);
	size_t i;

	offset -= offset % width;
	length -= length % width;
	if (!length)
		return;
	args.address = slot->address + offset;
	args.length = length;
	args.width = width;
	args.pattern = width == 4 ? pattern : pattern & ((1U << 8 * width) - 1);
	if (ioctl(worker->fd, VRAM_IOCTL_FILL, &args))
		fail("fill");
	worker->bytes += length;
	for (i = 0; i < length; i++)
		slot->shadow[offset + i] = pattern >> 8 * (i % width);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void *soak(void *argument)
{
	struct worker *worker = argument;
	double end = now() + worker->seconds;
	size_t i;

	for (; now() < end; worker->operations++) {
		struct slot *slot = &worker->slots[below(worker, SLOTS)];
		size_t offset, length;

		if (!slot->length) {
			allocate(worker, slot);
			continue;
		}
		length = random_length(worker, slot->length);
		offset = below(worker, slot->length - length + 1);
		switch (below(worker, 12)) {
		case 0:
			release(worker, slot);
			break;
		case 1 ... 4:
			write_some(worker, slot, offset, length);
			break;
		case 5 ... 7:
			compare(worker, slot, offset, length);
			break;
		case 8 ... 9:
			copy_some(worker, slot, offset, length);
			break;
		default:
			fill_some(worker, slot, offset, length);
			break;
		}
	}
	for (i = 0; i < SLOTS; i++)
		if (worker->slots[i].length)
			release(worker, &worker->slots[i]);
	return NULL;
}

static int open_device(void)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		fail(path);
	return fd;
}

/* One process: its threads share a context and differ in their streams. */
static int run_process(unsigned int number, double seconds, uint64_t seed,
		       unsigned int threads, uint64_t mib)
{
	struct worker *workers = calloc(threads, sizeof(*workers));
	uint64_t operations = 0, bytes = 0;
	int fd = open_device();
	unsigned int i;

	for (i = 0; i < threads; i++) {
		workers[i].fd = fd;
		workers[i].stream = i * 37 % 1024;
		workers[i].random = (seed + 1) * 2654435761ULL + number * 65537 +
				    i * 257 + 1;
		workers[i].budget = mib * MIB / threads;
		workers[i].seconds = seconds;
		if (pthread_create(&workers[i].thread, NULL, soak, &workers[i]))
			fail("pthread_create");
	}
	for (i = 0; i < threads; i++) {
		pthread_join(workers[i].thread, NULL);
		operations += workers[i].operations;
		bytes += workers[i].bytes;
	}
	printf("process %u: %llu operations, %llu MiB moved\n", number,
	       (unsigned long long)operations,
	       (unsigned long long)(bytes / MIB));
	return operations ? 0 : 1;
}

static int run_random(double seconds, uint64_t seed, unsigned int processes,
		      unsigned int threads, uint64_t mib)
{
	int status, failed = 0;
	unsigned int i;

	for (i = 0; i < processes; i++) {
		fflush(stdout);
		switch (fork()) {
		case -1:
			fail("fork");
			break;
		case 0:
			exit(run_process(i, seconds, seed, threads, mib));
		}
	}
	for (i = 0; i < processes; i++)
		if (wait(&status) < 0 || status)
			failed = 1;
	return failed;
}

static int run_zeros(uint64_t mib)
{
	struct worker worker = { .fd = open_device() };
	struct vram_ioctl_alloc args = { .length = mib * MIB };
	uint64_t offset, nonzero = 0;
	uint8_t *buffer = malloc(MIB);
	size_t i;

	if (!buffer || ioctl(worker.fd, VRAM_IOCTL_ALLOC, &args))
		fail("alloc");
	for (offset = 0; offset < args.length; offset += MIB) {
		memset(buffer, 0xff, MIB);
		transfer(&worker, args.address + offset, buffer, MIB,
			 VRAM_FROM_DEVICE);
		for (i = 0; i < MIB; i++)
			nonzero += buffer[i] != 0;
	}
	printf("%llu\n", (unsigned long long)nonzero);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc >= 3 && !strcmp(argv[1], "zeros")) {
		path = argc > 3 ? argv[3] : path;
		return run_zeros(strtoull(argv[2], NULL, 0));
	}
	if (argc >= 7 && !strcmp(argv[1], "random")) {
		path = argc > 7 ? argv[7] : path;
		return run_random(strtod(argv[2], NULL),
				  strtoull(argv[3], NULL, 0),
				  strtoul(argv[4], NULL, 0),
				  strtoul(argv[5], NULL, 0),
				  strtoull(argv[6], NULL, 0));
	}
	fprintf(stderr, "usage: vram_soak zeros MIB [DEVICE]\n"
			"       vram_soak random SECONDS SEED PROCESSES THREADS MIB [DEVICE]\n");
	return 2;
}
