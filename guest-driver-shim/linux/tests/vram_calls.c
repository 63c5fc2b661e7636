// SPDX-License-Identifier: GPL-2.0-only
/*
 * Makes calls of /dev/vramN as it is told, for tests that have the device fail
 * in between. Needs nothing but libc and may be linked statically.
 *
 *   vram_calls [DEVICE]
 *
 * Each line of standard input is a call, made on a thread of its own: one that
 * waits for the device does not keep the next from being made.
 *
 *   ID FILE CALL [ARGUMENT...]
 *
 * ID is any number and FILE one below 16, a slot for an open file. Calls are:
 *
 *   open, close, version, info, fence
 *   alloc LENGTH, free ADDRESS, query ADDRESS
 *   doomed_alloc LENGTH TIME
 *   write ADDRESS LENGTH [STREAM], read ADDRESS LENGTH [STREAM]
 *   copy DESTINATION SOURCE LENGTH, fill ADDRESS LENGTH PATTERN
 *
 * A write writes byte n of a fixed pattern to ADDRESS + n. A doomed call is made
 * by a child, which is killed after TIME milliseconds. When a call returns there
 * is a line
 *
 *   ID ERROR MILLISECONDS VALUE MOVED SAME
 *
 * where ERROR is "OK" or the errno's name, VALUE what an alloc, a query (base),
 * a version (epoch) or an info (contexts) returned or how many milliseconds a
 * child took to be killed, MOVED the bytes a transfer reported, and SAME how
 * many bytes from the start a read found to be those of the pattern.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "vram_ioctl.h"

#define FILES 16

struct call {
	unsigned long id;
	int *file;
	char name[16];
	uint64_t arguments[3];
	int error;
	uint64_t value;
	uint64_t moved;
	uint64_t same;
};

static const char *path = "/dev/vram0";
static int files[FILES];

static uint8_t pattern(uint64_t n)
{
	return n * 7 + (n >> 9) + 1;
}

static double now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static void outcome(struct call *call, int result)
{
	call->error = result < 0 ? errno : 0;
}

static void do_transfer(struct call *call, uint32_t direction)
{
	struct vram_ioctl_transfer args = {
		.device_address = call->arguments[0],
		.length = call->arguments[1],
		.stream = call->arguments[2],
		.direction = direction,
		.moved = ~0ULL,
	};
	uint8_t *bytes = mmap(NULL, args.length, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t n;

	if (bytes == MAP_FAILED) {
		call->error = errno;
		return;
	}
	args.user_pointer = (uintptr_t)bytes;
	if (direction == VRAM_TO_DEVICE)
		for (n = 0; n < args.length; n++)
			bytes[n] = pattern(n);
	outcome(call, ioctl(*call->file, VRAM_IOCTL_TRANSFER, &args));
	call->moved = args.moved;
	while (direction == VRAM_FROM_DEVICE && call->same < args.length &&
	       bytes[call->same] == pattern(call->same))
		call->same++;
	munmap(bytes, args.length);
}

static void do_alloc(struct call *call)
{
	struct vram_ioctl_alloc args = { .length = call->arguments[0] };

	outcome(call, ioctl(*call->file, VRAM_IOCTL_ALLOC, &args));
	call->value = args.address;
}

/* The file stays open, so its context does too. */
static void do_doomed_alloc(struct call *call)
{
	pid_t child = fork();
	double begin;
	int status;

	if (child < 0) {
		call->error = errno;
		return;
	}
	if (!child) {
		do_alloc(call);
		_exit(0);
	}
	usleep(call->arguments[1] * 1000);
	begin = now_ms();
	kill(child, SIGKILL);
	if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status))
		call->error = ECHILD;
	call->value = now_ms() - begin;
}

static void do_free(struct call *call)
{
	struct vram_ioctl_free args = { .address = call->arguments[0] };

	outcome(call, ioctl(*call->file, VRAM_IOCTL_FREE, &args));
}

static void do_query(struct call *call)
{
	struct vram_ioctl_extent extent;
	struct vram_ioctl_query args = {
		.address = call->arguments[0],
		.extent_capacity = 1,
		.extents = (uintptr_t)&extent,
	};

	outcome(call, ioctl(*call->file, VRAM_IOCTL_QUERY, &args));
	call->value = args.base;
}

static void do_copy(struct call *call)
{
	struct vram_ioctl_copy args = {
		.destination = call->arguments[0],
		.source = call->arguments[1],
		.length = call->arguments[2],
		.moved = ~0ULL,
	};

	outcome(call, ioctl(*call->file, VRAM_IOCTL_COPY, &args));
	call->moved = args.moved;
}

static void do_fill(struct call *call)
{
	struct vram_ioctl_fill args = {
		.address = call->arguments[0],
		.length = call->arguments[1],
		.pattern = call->arguments[2],
		.width = 1,
		.moved = ~0ULL,
	};

	outcome(call, ioctl(*call->file, VRAM_IOCTL_FILL, &args));
	call->moved = args.moved;
}

static void do_fence(struct call *call)
{
	struct vram_ioctl_fence args = { .flags = VRAM_IOCTL_FENCE_ALL };

	outcome(call, ioctl(*call->file, VRAM_IOCTL_FENCE, &args));
}

static void do_version(struct call *call)
{
	struct vram_ioctl_version args = {};

	outcome(call, ioctl(*call->file, VRAM_IOCTL_VERSION, &args));
	call->value = args.boot_epoch;
}

static void do_info(struct call *call)
{
	struct vram_ioctl_info args = {};

	outcome(call, ioctl(*call->file, VRAM_IOCTL_INFO, &args));
	call->value = args.contexts;
}

static void do_open(struct call *call)
{
	*call->file = open(path, O_RDWR | O_CLOEXEC);
	outcome(call, *call->file);
}

static void do_close(struct call *call)
{
	outcome(call, close(*call->file));
	*call->file = -1;
}

static void do_call(struct call *call)
{
	const char *name = call->name;

	if (!strcmp(name, "open"))
		do_open(call);
	else if (!strcmp(name, "close"))
		do_close(call);
	else if (!strcmp(name, "version"))
		do_version(call);
	else if (!strcmp(name, "info"))
		do_info(call);
	else if (!strcmp(name, "alloc"))
		do_alloc(call);
	else if (!strcmp(name, "doomed_alloc"))
		do_doomed_alloc(call);
	else if (!strcmp(name, "free"))
		do_free(call);
	else if (!strcmp(name, "query"))
		do_query(call);
	else if (!strcmp(name, "write"))
		do_transfer(call, VRAM_TO_DEVICE);
	else if (!strcmp(name, "read"))
		do_transfer(call, VRAM_FROM_DEVICE);
	else if (!strcmp(name, "copy"))
		do_copy(call);
	else if (!strcmp(name, "fill"))
		do_fill(call);
	else if (!strcmp(name, "fence"))
		do_fence(call);
	else
		call->error = ENOTTY;
}

static void *run_call(void *argument)
{
	struct call *call = argument;
	double begin = now_ms();
	char line[128];
	int length;

	do_call(call);
	length = snprintf(line, sizeof(line), "%lu %s %.0f %llu %llu %llu\n",
			  call->id,
			  call->error ? strerrorname_np(call->error) : "OK",
			  now_ms() - begin, (unsigned long long)call->value,
			  (unsigned long long)call->moved,
			  (unsigned long long)call->same);
	free(call);
	/* One write, so that lines of several threads do not mix. */
	if (write(STDOUT_FILENO, line, length) != length)
		exit(1);
	return NULL;
}

int main(int argc, char **argv)
{
	char line[256];
	int i;

	if (argc > 1)
		path = argv[1];
	for (i = 0; i < FILES; i++)
		files[i] = -1;
	while (fgets(line, sizeof(line), stdin)) {
		struct call *call = calloc(1, sizeof(*call));
		unsigned int file = 0;
		pthread_t thread;

		if (!call || sscanf(line, "%lu %u %15s %lli %lli %lli",
				    &call->id, &file, call->name,
				    (long long *)&call->arguments[0],
				    (long long *)&call->arguments[1],
				    (long long *)&call->arguments[2]) < 3 ||
		    file >= FILES) {
			fprintf(stderr, "not a call: %s", line);
			return 2;
		}
		call->file = &files[file];
		if (pthread_create(&thread, NULL, run_call, call))
			return 2;
		pthread_detach(thread);
	}
	return 0;
}
