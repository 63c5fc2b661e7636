/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for /dev/vram0 for tests of whole programs: a library to preload.
 *
 * Opening the path that VRAM_FAKE_DEVICE names makes a memfd; the vram calls on
 * such a descriptor are served here. As with the real node, one open file is
 * one context that lives as long as its last descriptor, in whatever process.
 * Contexts opened before the file that VRAM_FAKE_STALE names was there are
 * stale once it is.
 *
 * A program ends with the process whose number VRAM_FAKE_LIFE gives: a holder
 * leaves those that start it, and would outlive a test that is stopped.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vram_ioctl.h"

#define MAGIC		0x656b61666d617276ull
#define PAGE		4096ull
#define HEADER_BYTES	(64 * PAGE)
#define BAND_BASE	0x7f0000000000ull
#define BAND_BYTES	(1ull << 30)
#define LIMIT_BYTES	(256ull << 20)
#define EXTENT_BYTES	(16ull << 20)
#define MAX_ENTRIES	4096

struct state {
	unsigned long long magic;
	int lock;
	int fresh;
	unsigned int told;
	unsigned int count;
	struct { unsigned long long address, length; } entries[MAX_ENTRIES];
};

_Static_assert(sizeof(struct state) <= HEADER_BYTES, "the table fits");

static int is_fake(const char *path)
{
	const char *fake = getenv("VRAM_FAKE_DEVICE");

	return fake && !strcmp(path, fake);
}

static int restarted(void)
{
	const char *sign = getenv("VRAM_FAKE_STALE");

	return sign && !access(sign, F_OK);
}

static int open_fake(void)
{
	struct { unsigned long long magic; int lock, fresh; } head = { MAGIC, 0, restarted() };
	int fd = memfd_create("fake-vram", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, HEADER_BYTES + BAND_BYTES) ||
	    pwrite(fd, &head, sizeof(head), 0) != sizeof(head))
		return -1;
	return fd;
}

int open64(const char *path, int flags, ...)
{
	int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
	va_list arguments;
	mode_t mode;

	va_start(arguments, flags);
	mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
	va_end(arguments);
	return is_fake(path) ? open_fake() : next(path, flags, mode);
}

int open(const char *path, int flags, ...)
{
	va_list arguments;
	mode_t mode;

	va_start(arguments, flags);
	mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
	va_end(arguments);
	return open64(path, flags, mode);
}

static int find(struct state *state, unsigned long long address, unsigned long long length)
{
	for (unsigned int i = 0; i < state->count; i++) {
		unsigned long long offset = address - state->entries[i].address;

		if (address >= state->entries[i].address && offset < state->entries[i].length &&
		    length <= state->entries[i].length - offset)
			return (int)i;
	}
	return -1;
}

static unsigned char *bytes(struct state *state, unsigned long long address)
{
	return (unsigned char *)state + HEADER_BYTES + (address - BAND_BASE);
}

static unsigned long long used(struct state *state)
{
	unsigned long long sum = 0;

	for (unsigned int i = 0; i < state->count; i++)
		sum += state->entries[i].length;
	return sum;
}

static int do_info(struct state *state, struct vram_ioctl_info *info)
{
	struct vram_ioctl_gpu *gpus = (struct vram_ioctl_gpu *)(unsigned long)info->gpus;

	info->limit_bytes = LIMIT_BYTES;
	info->guarantee_bytes = LIMIT_BYTES / 2;
	info->allocated_bytes = info->backed_bytes = used(state);
	info->shard_bytes = EXTENT_BYTES;
	info->allocations = state->count;
	info->contexts = 1;
	info->flags = VRAM_INFO_SIMULATED;
	info->gpu_count = 2;
	strcpy((char *)info->slice_name, "fake");
	for (unsigned int i = 0; i < 2 && i < info->gpu_capacity; i++) {
		memset(&gpus[i], 0, sizeof(gpus[i]));
		gpus[i].index = i;
		gpus[i].flags = i ? 0 : VRAM_IOCTL_GPU_HOME;
		gpus[i].total_bytes = BAND_BYTES;
		strcpy((char *)gpus[i].name, i ? "Fake GPU one" : "Fake GPU zero");
	}
	return 0;
}

static int do_alloc(struct state *state, struct vram_ioctl_alloc *alloc)
{
	unsigned long long alignment = alloc->alignment > PAGE ? alloc->alignment : PAGE;
	unsigned long long address = BAND_BASE;

	if (!alloc->length || (alloc->alignment & (alloc->alignment - 1)) || alloc->alignment > 1ull << 30)
		return EINVAL;
	if (alloc->length > LIMIT_BYTES - used(state))
		return EDQUOT;
	if (state->count == MAX_ENTRIES)
		return EMFILE;
again:
	address = (address + alignment - 1) & ~(alignment - 1);
	for (unsigned int i = 0; i < state->count; i++) {
		unsigned long long end = state->entries[i].address + state->entries[i].length;

		if (address < end && state->entries[i].address < address + alloc->length) {
			address = end;
			goto again;
		}
	}
	if (address + alloc->length > BAND_BASE + BAND_BYTES)
		return ENOMEM;
	memset(bytes(state, address), 0, alloc->length);
	state->entries[state->count].address = address;
	state->entries[state->count++].length = alloc->length;
	alloc->address = address;
	return 0;
}

static int do_free(struct state *state, const struct vram_ioctl_free *request)
{
	int i = find(state, request->address, 0);

	if (i < 0 || state->entries[i].address != request->address)
		return ENXIO;
	state->entries[i] = state->entries[--state->count];
	return 0;
}

static int do_query(struct state *state, struct vram_ioctl_query *query)
{
	struct vram_ioctl_extent *extents = (struct vram_ioctl_extent *)(unsigned long)query->extents;
	int i = find(state, query->address, 1);

	if (i < 0)
		return ENXIO;
	query->base = state->entries[i].address;
	query->length = state->entries[i].length;
	query->extent_total = (query->length + EXTENT_BYTES - 1) / EXTENT_BYTES;
	query->extent_count = 0;
	while (query->extent_count < query->extent_capacity &&
	       query->first_extent + query->extent_count < query->extent_total) {
		unsigned int number = query->first_extent + query->extent_count;
		struct vram_ioctl_extent *extent = &extents[query->extent_count++];
		unsigned long long left = query->length - number * EXTENT_BYTES;

		extent->address = query->base + number * EXTENT_BYTES;
		extent->length = left < EXTENT_BYTES ? left : EXTENT_BYTES;
		extent->gpu = number % 2;
		extent->tier = VRAM_IOCTL_TIER_GPU;
	}
	return 0;
}

static int do_advise(struct state *state, const struct vram_ioctl_advise *request)
{
	unsigned int arguments = request->advice == VRAM_IOCTL_ADVICE_PREFER_GPU ? 2 : 1;

	if (!request->length || !request->advice || request->advice > VRAM_IOCTL_ADVICE_PREFER_GPU ||
	    request->argument >= arguments)
		return EINVAL;
	return find(state, request->address, request->length) < 0 ? ENXIO : 0;
}

/* One of each kind, then none. */
static int do_event(struct state *state, struct vram_ioctl_event *event)
{
	static const struct vram_ioctl_event told[] = {
		{ .kind = VRAM_IOCTL_EVENT_GPU_LOST, .value = 1 },
		{ .kind = VRAM_IOCTL_EVENT_DATA_LOST, .value = BAND_BASE, .extra = PAGE },
		{ .kind = VRAM_IOCTL_EVENT_LIMIT_CHANGED, .value = LIMIT_BYTES, .extra = LIMIT_BYTES / 2 },
		{ .kind = VRAM_IOCTL_EVENT_MISSED, .value = 5 },
	};

	if (state->told == sizeof(told) / sizeof(told[0]))
		return EAGAIN;
	*event = told[state->told++];
	return 0;
}

static int do_transfer(struct state *state, struct vram_ioctl_transfer *request)
{
	void *user = (void *)(unsigned long)request->user_pointer;

	if (!request->length || request->direction > 1 || request->stream >= 1024)
		return EINVAL;
	if (find(state, request->device_address, request->length) < 0)
		return ENXIO;
	if (request->direction == VRAM_TO_DEVICE)
		memcpy(bytes(state, request->device_address), user, request->length);
	else
		memcpy(user, bytes(state, request->device_address), request->length);
	request->moved = request->length;
	return 0;
}

static int do_copy(struct state *state, struct vram_ioctl_copy *request)
{
	unsigned long long low = request->source < request->destination ? request->source : request->destination;
	unsigned long long high = request->source ^ request->destination ^ low;

	if (!request->length || request->stream >= 1024 || high - low < request->length)
		return EINVAL;
	if (find(state, request->source, request->length) < 0 ||
	    find(state, request->destination, request->length) < 0)
		return ENXIO;
	memcpy(bytes(state, request->destination), bytes(state, request->source), request->length);
	request->moved = request->length;
	return 0;
}

static int do_fill(struct state *state, struct vram_ioctl_fill *request)
{
	if ((request->width != 1 && request->width != 2 && request->width != 4) || !request->length ||
	    request->length % request->width || request->address % request->width || request->stream >= 1024)
		return EINVAL;
	if (find(state, request->address, request->length) < 0)
		return ENXIO;
	for (unsigned long long at = 0; at < request->length; at += request->width)
		memcpy(bytes(state, request->address) + at, &request->pattern, request->width);
	request->moved = request->length;
	return 0;
}

static int serve(struct state *state, unsigned long number, void *argument)
{
	switch (number) {
	case VRAM_IOCTL_VERSION: {
		struct vram_ioctl_version version = {
			.ioctl_version = VRAM_IOCTL_VERSION_NUMBER, .abi_major = 1, .abi_minor = 1, .boot_epoch = 7,
			.band_base = BAND_BASE, .band_length = BAND_BYTES,
			.max_transfer_bytes = 4 << 20, .request_queues = 1,
		};
		*(struct vram_ioctl_version *)argument = version;
		return 0;
	}
	case VRAM_IOCTL_INFO:
		return do_info(state, argument);
	case VRAM_IOCTL_ALLOC:
		return do_alloc(state, argument);
	case VRAM_IOCTL_FREE:
		return do_free(state, argument);
	case VRAM_IOCTL_QUERY:
		return do_query(state, argument);
	case VRAM_IOCTL_ADVISE:
		return do_advise(state, argument);
	case VRAM_IOCTL_EVENT:
		return do_event(state, argument);
	case VRAM_IOCTL_TRANSFER:
		return do_transfer(state, argument);
	case VRAM_IOCTL_COPY:
		return do_copy(state, argument);
	case VRAM_IOCTL_FILL:
		return do_fill(state, argument);
	case VRAM_IOCTL_FENCE:
		return ((struct vram_ioctl_fence *)argument)->stream < 1024 ? 0 : EINVAL;
	}
	return ENOTTY;
}

int ioctl(int fd, unsigned long number, ...)
{
	int (*next)(int, unsigned long, ...) = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
	struct state *state;
	struct stat status;
	va_list arguments;
	void *argument;
	int error;

	va_start(arguments, number);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	if (_IOC_TYPE(number) != VRAM_IOCTL_BASE || fstat(fd, &status) ||
	    status.st_size != (off_t)(HEADER_BYTES + BAND_BYTES))
		return next(fd, number, argument);
	state = mmap(NULL, HEADER_BYTES + BAND_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (state == MAP_FAILED)
		return -1;
	error = ENOTTY;
	if (state->magic == MAGIC) {
		while (__atomic_exchange_n(&state->lock, 1, __ATOMIC_ACQUIRE))
			sched_yield();
		if (number != VRAM_IOCTL_VERSION && number != VRAM_IOCTL_INFO && restarted() && !state->fresh)
			error = ESTALE;
		else
			error = serve(state, number, argument);
		__atomic_store_n(&state->lock, 0, __ATOMIC_RELEASE);
	}
	munmap(state, HEADER_BYTES + BAND_BYTES);
	if (error) {
		errno = error;
		return -1;
	}
	return 0;
}

static void *end_with(void *life)
{
	struct pollfd pollfd = { .fd = (int)(long)life, .events = POLLIN };

	while (poll(&pollfd, 1, -1) != 1)
		;
	_exit(1);
}

__attribute__((constructor)) static void end_with_life(void)
{
	const char *life = getenv("VRAM_FAKE_LIFE");
	pthread_t thread;
	int fd;

	if (!life)
		return;
	fd = syscall(SYS_pidfd_open, atoi(life), 0);
	if (fd < 0 || pthread_create(&thread, NULL, end_with, (void *)(long)fd))
		_exit(1);
}
