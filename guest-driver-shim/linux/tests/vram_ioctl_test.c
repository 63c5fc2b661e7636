// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tests the calls of /dev/vramN against a device that works, with good and
 * with bad arguments. Needs nothing but libc and may be linked statically.
 *
 *   vram_ioctl_test [DEVICE [SEED]]
 *
 * Prints a line for each failure and at the end "N passed, M failed". The exit
 * status is 0 if all passed, 1 if not, 2 if the device cannot be opened.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vram_ioctl.h"

#define KIB 1024UL
#define MIB (1024UL * KIB)
#define STREAMS 1024
#define ARRAY_LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static const char *path = "/dev/vram0";
static unsigned int passed, failed;
static size_t page;
static uint64_t random_state = 1;

static void check_at(int line, int good, const char *what)
{
	if (good) {
		__atomic_add_fetch(&passed, 1, __ATOMIC_RELAXED);
		return;
	}
	__atomic_add_fetch(&failed, 1, __ATOMIC_RELAXED);
	printf("FAILED line %d: %s\n", line, what);
}

static const char *error_name(int error)
{
	return error ? strerror(error) : "success";
}

/* The outcome of a call that returned @result: 0 or an errno. */
static int outcome(int result)
{
	return result < 0 ? errno : 0;
}

static void expect_at(int line, int got, int wanted, const char *what)
{
	char text[256];

	snprintf(text, sizeof(text), "%s: %s, expected %s", what,
		 error_name(got), error_name(wanted));
	check_at(line, got == wanted, text);
}

#define check(good) check_at(__LINE__, (good) != 0, #good)
#define expect(wanted, call) expect_at(__LINE__, outcome(call), (wanted), #call)

static uint64_t next_random(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static void fill_random(void *to, size_t length)
{
	uint8_t *byte = to;
	size_t i;

	for (i = 0; i < length; i++)
		byte[i] = next_random() >> 32;
}

static int open_device(void)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0) {
		printf("cannot open %s: %s\n", path, strerror(errno));
		exit(2);
	}
	return fd;
}

static void *map_pages(size_t length, int protection)
{
	void *at = mmap(NULL, length, protection, MAP_PRIVATE | MAP_ANONYMOUS,
			-1, 0);

	if (at == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return at;
}

/* An address no mapping has. */
static void *unmapped(void)
{
	void *at = map_pages(page, PROT_NONE);

	munmap(at, page);
	return at;
}

static struct vram_ioctl_info get_info(int fd)
{
	struct vram_ioctl_info info = {};

	expect(0, ioctl(fd, VRAM_IOCTL_INFO, &info));
	return info;
}

static uint64_t allocate(int fd, uint64_t length)
{
	struct vram_ioctl_alloc args = { .length = length };

	expect(0, ioctl(fd, VRAM_IOCTL_ALLOC, &args));
	return args.address;
}

static int release(int fd, uint64_t address)
{
	struct vram_ioctl_free args = { .address = address };

	return ioctl(fd, VRAM_IOCTL_FREE, &args);
}

static int transfer_on(int fd, uint32_t stream, uint32_t direction,
		       uint64_t address, const void *user, uint64_t length,
		       uint64_t *moved)
{
	struct vram_ioctl_transfer args = {
		.device_address = address,
		.user_pointer = (uintptr_t)user,
		.length = length,
		.moved = ~0ULL,
		.direction = direction,
		.stream = stream,
	};
	int result = ioctl(fd, VRAM_IOCTL_TRANSFER, &args);

	if (moved)
		*moved = args.moved;
	return result;
}

static int put(int fd, uint64_t address, const void *user, uint64_t length)
{
	return transfer_on(fd, 0, VRAM_TO_DEVICE, address, user, length, NULL);
}

static int get(int fd, uint64_t address, void *user, uint64_t length)
{
	return transfer_on(fd, 0, VRAM_FROM_DEVICE, address, user, length, NULL);
}

static void test_version(int fd)
{
	struct vram_ioctl_version version;

	memset(&version, 0xff, sizeof(version));
	expect(0, ioctl(fd, VRAM_IOCTL_VERSION, &version));
	check(version.ioctl_version == VRAM_IOCTL_VERSION_NUMBER);
	check(version.abi_major == 1 && version.abi_minor >= 1);
	check(version.max_transfer_bytes >= page);
	check(version.request_queues >= 1);
	check(version.band_length > 0);
	check(version.reserved[0] == 0 && version.reserved[1] == 0);
	printf("request queues %u, interrupt vectors %u, max transfer %llu\n",
	       version.request_queues, version.interrupt_vectors,
	       (unsigned long long)version.max_transfer_bytes);
}

static void test_unknown_calls(int fd)
{
	char buffer[256] = {};

	expect(ENOTTY, ioctl(fd, _IO(VRAM_IOCTL_BASE, 0x00)));
	expect(ENOTTY, ioctl(fd, _IOR(VRAM_IOCTL_BASE, 0x00, char[63]), buffer));
	expect(ENOTTY, ioctl(fd, _IOWR(VRAM_IOCTL_BASE, 0x21, struct vram_ioctl_copy),
			     buffer));
	expect(ENOTTY, ioctl(fd, _IOR('V', 0x00, struct vram_ioctl_version), buffer));
	expect(ENOTTY, ioctl(fd, 0, buffer));
	expect(ENOTTY, ioctl(fd, ~0UL, buffer));
}

static void test_other_file_operations(int fd)
{
	char byte = 0;

	check(mmap(NULL, page, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	check(read(fd, &byte, 1) < 0);
	check(write(fd, &byte, 1) < 0);
	check(lseek(fd, 0, SEEK_SET) < 0);
}

/* A call with a structure of its own, to try pointers on. */
struct call {
	const char *name;
	unsigned long request;
	size_t size;
	int writes;
};

static const struct call calls[] = {
	{ "VERSION", VRAM_IOCTL_VERSION, sizeof(struct vram_ioctl_version), 1 },
	{ "INFO", VRAM_IOCTL_INFO, sizeof(struct vram_ioctl_info), 1 },
	{ "ALLOC", VRAM_IOCTL_ALLOC, sizeof(struct vram_ioctl_alloc), 1 },
	{ "FREE", VRAM_IOCTL_FREE, sizeof(struct vram_ioctl_free), 0 },
	{ "QUERY", VRAM_IOCTL_QUERY, sizeof(struct vram_ioctl_query), 1 },
	{ "ADVISE", VRAM_IOCTL_ADVISE, sizeof(struct vram_ioctl_advise), 0 },
	{ "TRANSFER", VRAM_IOCTL_TRANSFER, sizeof(struct vram_ioctl_transfer), 1 },
	{ "COPY", VRAM_IOCTL_COPY, sizeof(struct vram_ioctl_copy), 1 },
	{ "FILL", VRAM_IOCTL_FILL, sizeof(struct vram_ioctl_fill), 1 },
	{ "FENCE", VRAM_IOCTL_FENCE, sizeof(struct vram_ioctl_fence), 0 },
};

static void test_bad_pointers(int fd)
{
	uint8_t *pages = map_pages(2 * page, PROT_READ | PROT_WRITE);
	void *const bad[] = {
		NULL, (void *)8, unmapped(), (void *)(uintptr_t)-4096,
		(void *)((uintptr_t)1 << (sizeof(long) * 8 - 1)),
	};
	size_t i, j;

	munmap(pages + page, page);
	for (i = 0; i < ARRAY_LENGTH(calls); i++) {
		const struct call *call = &calls[i];

		for (j = 0; j < ARRAY_LENGTH(bad); j++)
			expect_at(__LINE__, outcome(ioctl(fd, call->request, bad[j])),
				  EFAULT, call->name);
		/* All but the last bytes are there. */
		expect_at(__LINE__,
			  outcome(ioctl(fd, call->request,
					pages + page - call->size + 4)),
			  EFAULT, call->name);
	}
	munmap(pages, page);
}

static void test_reserved_fields(int fd)
{
	uint64_t address = allocate(fd, MIB);
	uint8_t byte = 0;

#define REFUSES(request, type, field, ...)				\
	do {								\
		struct type args = { __VA_ARGS__ };			\
									\
		args.field = 1;						\
		expect(EINVAL, ioctl(fd, request, &args));		\
	} while (0)

	REFUSES(VRAM_IOCTL_INFO, vram_ioctl_info, reserved0, .reserved0 = 0);
	REFUSES(VRAM_IOCTL_INFO, vram_ioctl_info, reserved[0], .reserved0 = 0);
	REFUSES(VRAM_IOCTL_INFO, vram_ioctl_info, reserved[1], .reserved0 = 0);
	REFUSES(VRAM_IOCTL_ALLOC, vram_ioctl_alloc, reserved, .length = 4096);
	REFUSES(VRAM_IOCTL_FREE, vram_ioctl_free, reserved, .address = address);
	REFUSES(VRAM_IOCTL_QUERY, vram_ioctl_query, reserved,
		.address = address);
	REFUSES(VRAM_IOCTL_TRANSFER, vram_ioctl_transfer, reserved,
		.device_address = address, .user_pointer = (uintptr_t)&byte,
		.length = 1);
	REFUSES(VRAM_IOCTL_COPY, vram_ioctl_copy, reserved0,
		.destination = address, .source = address + 4096, .length = 1);
	REFUSES(VRAM_IOCTL_COPY, vram_ioctl_copy, reserved,
		.destination = address, .source = address + 4096, .length = 1);
	REFUSES(VRAM_IOCTL_FILL, vram_ioctl_fill, reserved0,
		.address = address, .length = 1, .width = 1);
	REFUSES(VRAM_IOCTL_FILL, vram_ioctl_fill, reserved,
		.address = address, .length = 1, .width = 1);
	REFUSES(VRAM_IOCTL_FENCE, vram_ioctl_fence, reserved, .stream = 0);
#undef REFUSES
	expect(0, release(fd, address));
}

static void test_info(int fd)
{
	struct vram_ioctl_gpu gpus[65];
	struct vram_ioctl_info info = get_info(fd);
	uint32_t i, count = info.gpu_count;

	check(count >= 1 && count <= 64);
	check(info.limit_bytes > 0);
	check(info.slice_name[sizeof(info.slice_name) - 1] == 0);
	check(info.reserved[0] == 0 && info.reserved[1] == 0);

	memset(gpus, 0xee, sizeof(gpus));
	info.gpus = (uintptr_t)gpus;
	info.gpu_capacity = 64;
	expect(0, ioctl(fd, VRAM_IOCTL_INFO, &info));
	check(info.gpu_count == count);
	for (i = 0; i < count && i < 64; i++) {
		check(gpus[i].total_bytes > 0);
		check(gpus[i].reserved == 0);
	}
	check(gpus[i].index == 0xeeeeeeee);

	/* The pointer counts only if there is a capacity. */
	info.gpus = (uintptr_t)unmapped();
	info.gpu_capacity = 0;
	expect(0, ioctl(fd, VRAM_IOCTL_INFO, &info));
	info.gpu_capacity = 1;
	expect(EFAULT, ioctl(fd, VRAM_IOCTL_INFO, &info));
	info.gpu_capacity = ~0U;
	info.gpus = (uintptr_t)gpus;
	expect(0, ioctl(fd, VRAM_IOCTL_INFO, &info));
}

static void test_alloc(int fd)
{
	struct vram_ioctl_version version = {};
	struct vram_ioctl_info before = get_info(fd);
	struct vram_ioctl_alloc args, *const_args;
	static uint8_t bytes[4096];
	uint64_t alignment;
	size_t i;

	expect(0, ioctl(fd, VRAM_IOCTL_VERSION, &version));

	args = (struct vram_ioctl_alloc){ .length = 0 };
	expect(EINVAL, ioctl(fd, VRAM_IOCTL_ALLOC, &args));
	args = (struct vram_ioctl_alloc){ .length = 4096, .alignment = 3 };
	expect(EINVAL, ioctl(fd, VRAM_IOCTL_ALLOC, &args));
	args.alignment = 1ULL << 31;
	expect(EINVAL, ioctl(fd, VRAM_IOCTL_ALLOC, &args));
	args.alignment = ~0ULL;
	expect(EINVAL, ioctl(fd, VRAM_IOCTL_ALLOC, &args));
	args = (struct vram_ioctl_alloc){ .length = before.limit_bytes + (1ULL << 30) };
	expect(EDQUOT, ioctl(fd, VRAM_IOCTL_ALLOC, &args));
	args.length = ~0ULL;
	check(ioctl(fd, VRAM_IOCTL_ALLOC, &args) < 0 &&
	      (errno == EDQUOT || errno == EINVAL || errno == ENOMEM));

	for (alignment = 1; alignment <= 2 * MIB; alignment *= 2) {
		args = (struct vram_ioctl_alloc){
			.length = 1, .alignment = alignment
		};
		expect(0, ioctl(fd, VRAM_IOCTL_ALLOC, &args));
		check(args.address % alignment == 0 && args.address % 256 == 0);
		check(args.address >= version.band_base &&
		      args.address - version.band_base < version.band_length);
		expect(0, release(fd, args.address));
	}

	/* New memory is zero. */
	args = (struct vram_ioctl_alloc){ .length = sizeof(bytes) };
	expect(0, ioctl(fd, VRAM_IOCTL_ALLOC, &args));
	memset(bytes, 0xaa, sizeof(bytes));
	expect(0, get(fd, args.address, bytes, sizeof(bytes)));
	for (i = 0; i < sizeof(bytes) && !bytes[i]; i++)
		;
	check(i == sizeof(bytes));
	expect(0, release(fd, args.address));

	/* An allocation nobody can be told of does not stay. */
	const_args = map_pages(page, PROT_READ | PROT_WRITE);
	const_args->length = 4096;
	mprotect(const_args, page, PROT_READ);
	expect(EFAULT, ioctl(fd, VRAM_IOCTL_ALLOC, const_args));
	munmap(const_args, page);
	check(get_info(fd).allocations == before.allocations);
	check(get_info(fd).allocated_bytes == before.allocated_bytes);
}

static void test_free(int fd)
{
	uint64_t address = allocate(fd, 8192);

	expect(ENXIO, release(fd, 0));
	expect(ENXIO, release(fd, ~0ULL));
	expect(ENXIO, release(fd, address + 256));
	expect(ENXIO, release(fd, address + 8192));
	expect(0, release(fd, address));
	expect(ENXIO, release(fd, address));
}

static void test_query(int fd)
{
	struct vram_ioctl_extent extents[65], *bad = unmapped();
	const uint64_t length = 3 * MIB + 12345;
	uint64_t address = allocate(fd, length), at;
	struct vram_ioctl_query args = { .address = address };
	uint32_t i;

	expect(0, ioctl(fd, VRAM_IOCTL_QUERY, &args));
	check(args.base == address && args.length == length);
	check(args.extent_count == 0 && args.extent_total >= 1);

	memset(extents, 0xee, sizeof(extents));
	args = (struct vram_ioctl_query){
		.address = address + length - 1,
		.extents = (uintptr_t)extents, .extent_capacity = 64,
	};
	expect(0, ioctl(fd, VRAM_IOCTL_QUERY, &args));
	check(args.base == address);
	check(args.extent_count == args.extent_total || args.extent_count == 64);
	for (i = 0, at = address; i < args.extent_count; i++) {
		check(extents[i].address == at);
		at += extents[i].length;
	}
	check(args.extent_count < args.extent_total || at == address + length);
	check(extents[args.extent_count].gpu == 0xeeeeeeee);

	args.first_extent = args.extent_total;
	expect(0, ioctl(fd, VRAM_IOCTL_QUERY, &args));
	check(args.extent_count == 0);
	args.first_extent = ~0U;
	expect(0, ioctl(fd, VRAM_IOCTL_QUERY, &args));
	args.first_extent = 0;
	args.extent_capacity = ~0U;
	expect(0, ioctl(fd, VRAM_IOCTL_QUERY, &args));
	args.extents = (uintptr_t)bad;
	args.extent_capacity = 1;
	expect(EFAULT, ioctl(fd, VRAM_IOCTL_QUERY, &args));
	args.address = 0;
	expect(ENXIO, ioctl(fd, VRAM_IOCTL_QUERY, &args));
	expect(0, release(fd, address));
}

/* Lengths and offsets around everything that a driver might round to. */
static int advise(int fd, uint64_t address, uint64_t length, uint32_t advice,
		  uint32_t argument)
{
	struct vram_ioctl_advise args = {
		.address = address, .length = length, .advice = advice,
		.argument = argument,
	};

	return ioctl(fd, VRAM_IOCTL_ADVISE, &args);
}

static void test_advise(int fd)
{
	struct vram_ioctl_advise args = { .advice = VRAM_IOCTL_ADVICE_COLD, .reserved = 1 };
	uint64_t address = allocate(fd, MIB);
	uint32_t advice;

	for (advice = VRAM_IOCTL_ADVICE_PREFETCH;
	     advice <= VRAM_IOCTL_ADVICE_PREFER_GPU; advice++)
		expect(0, advise(fd, address + 1, MIB - 1, advice, 0));
	expect(EINVAL, advise(fd, address, MIB, 0, 0));
	expect(EINVAL, advise(fd, address, MIB, 6, 0));
	expect(EINVAL, advise(fd, address, MIB, VRAM_IOCTL_ADVICE_PIN, 1));
	expect(EINVAL, advise(fd, address, MIB, VRAM_IOCTL_ADVICE_PREFER_GPU, 99));
	expect(EINVAL, advise(fd, address, 0, VRAM_IOCTL_ADVICE_COLD, 0));
	expect(ENXIO, advise(fd, address, MIB + 1, VRAM_IOCTL_ADVICE_COLD, 0));
	expect(ENXIO, advise(fd, ~0ULL, 1, VRAM_IOCTL_ADVICE_COLD, 0));
	expect(EINVAL, ioctl(fd, VRAM_IOCTL_ADVISE, &args));
	expect(0, release(fd, address));
	expect(ENXIO, advise(fd, address, 1, VRAM_IOCTL_ADVICE_COLD, 0));
}

/* Nothing happens meanwhile that one is told. */
static void test_no_events(int fd)
{
	struct pollfd pollfd = { .fd = fd, .events = POLLIN };
	struct vram_ioctl_event event;

	expect(EAGAIN, ioctl(fd, VRAM_IOCTL_EVENT, &event));
	expect(EAGAIN, ioctl(fd, VRAM_IOCTL_EVENT, NULL));
	check(poll(&pollfd, 1, 10) == 0);
}

static void test_transfer_shapes(int fd)
{
	static const size_t lengths[] = {
		1, 3, 255, 4095, 4096, 4097, 8191, 65536, 100003,
		1048576, 1048577, 4194303, 4194304, 4194305, 9437185,
	};
	static const size_t offsets[] = { 0, 1, 255, 2048, 4095 };
	const size_t most = 9437185 + 8192;
	uint8_t *from = map_pages(most, PROT_READ | PROT_WRITE);
	uint8_t *to = map_pages(most, PROT_READ | PROT_WRITE);
	uint64_t address = allocate(fd, most);
	size_t i, j;

	fill_random(from, most);
	for (i = 0; i < ARRAY_LENGTH(lengths); i++) {
		for (j = 0; j < ARRAY_LENGTH(offsets); j++) {
			const size_t length = lengths[i], offset = offsets[j];
			const size_t target = offsets[(j + i) % ARRAY_LENGTH(offsets)];
			uint64_t moved = 0;

			expect(0, transfer_on(fd, j, VRAM_TO_DEVICE,
					      address + offset, from + target,
					      length, &moved));
			check(moved == length);
			memset(to, 0x55, target + length + 16);
			expect(0, transfer_on(fd, j, VRAM_FROM_DEVICE,
					      address + offset, to + target,
					      length, &moved));
			check(moved == length);
			check(!memcmp(from + target, to + target, length));
			/* Nothing beside it was touched. */
			check(!target || to[target - 1] == 0x55);
			check(to[target + length] == 0x55);
		}
	}
	expect(0, release(fd, address));
	munmap(from, most);
	munmap(to, most);
}

static void test_transfer_memory_kinds(int fd)
{
	const size_t length = 5 * MIB;
	uint64_t address = allocate(fd, length);
	uint8_t *from = map_pages(length, PROT_READ | PROT_WRITE);
	int memory = memfd_create("vram", MFD_CLOEXEC);
	int executable = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	uint8_t *shared, *text;

	fill_random(from, length);
	check(!ftruncate(memory, length));
	shared = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	check(shared != MAP_FAILED);
	expect(0, put(fd, address, from, length));
	/* Pages of a shared file that nobody has touched yet. */
	expect(0, get(fd, address, shared, length));
	check(!memcmp(shared, from, length));
	expect(0, put(fd, address, shared, length));
	munmap(shared, length);

	/* A file mapped read-only can be sent, and cannot be received into. */
	text = mmap(NULL, page, PROT_READ, MAP_PRIVATE, executable, 0);
	check(text != MAP_FAILED);
	expect(0, put(fd, address, text, page));
	expect(EFAULT, get(fd, address, text, page));
	expect(0, get(fd, address, from, page));
	check(!memcmp(text, from, page));
	munmap(text, page);

	/* Memory never touched reads as zeros. */
	text = map_pages(length, PROT_READ | PROT_WRITE);
	expect(0, put(fd, address, text, length));
	expect(0, get(fd, address, from, length));
	check(!memcmp(text, from, length));
	munmap(text, length);

	expect(0, release(fd, address));
	munmap(from, length);
	close(memory);
	close(executable);
}

static void test_transfer_errors(int fd)
{
	const uint64_t length = 16 * MIB;
	uint64_t address = allocate(fd, length), moved = 0;
	uint8_t *user = map_pages(length, PROT_READ | PROT_WRITE);
	struct vram_ioctl_transfer args = {
		.device_address = address, .user_pointer = (uintptr_t)user,
		.length = 1, .direction = 2,
	};
	uint64_t hole;

	expect(EINVAL, ioctl(fd, VRAM_IOCTL_TRANSFER, &args));
	check(args.moved == 0);
	expect(EINVAL, put(fd, address, user, 0));
	expect(EINVAL, transfer_on(fd, STREAMS, VRAM_TO_DEVICE, address, user,
				   1, &moved));
	check(moved == 0);
	expect(EINVAL, transfer_on(fd, ~0U, VRAM_TO_DEVICE, address, user, 1,
				   NULL));
	expect(0, transfer_on(fd, STREAMS - 1, VRAM_TO_DEVICE, address, user, 1,
			      &moved));
	check(moved == 1);

	/* Device addresses */
	expect(ENXIO, put(fd, 0, user, 1));
	expect(ENXIO, put(fd, ~0ULL, user, 1));
	expect(ENXIO, put(fd, ~0ULL, user, 2));
	expect(ENXIO, put(fd, address + length - 1, user, 2));
	expect(ENXIO, put(fd, address - 1, user, 2));
	expect(ENXIO, get(fd, address + length, user, 1));

	/* User addresses */
	expect(EFAULT, put(fd, address, NULL, 1));
	expect(EFAULT, get(fd, address, NULL, 1));
	expect(EFAULT, put(fd, address, unmapped(), 4096));
	expect(EFAULT, put(fd, address, (void *)(uintptr_t)-4096, 4096));
	expect(EFAULT, put(fd, address, (void *)(uintptr_t)-1, 2));
	expect(ENXIO, put(fd, address, user, ~0ULL - 5));
	mprotect(user, page, PROT_READ);
	expect(EFAULT, get(fd, address, user, 1));
	expect(0, put(fd, address, user, 1));
	mprotect(user, page, PROT_NONE);
	expect(EFAULT, put(fd, address, user, 1));
	mprotect(user, page, PROT_READ | PROT_WRITE);

	/* A hole in the middle: what lies before it has moved. */
	for (hole = page; hole < length; hole = hole * 3 + page) {
		uint64_t at = hole / page * page;

		mprotect(user + at, page, PROT_NONE);
		expect(EFAULT, transfer_on(fd, 0, VRAM_TO_DEVICE, address + 1,
					   user + 1, length - 1, &moved));
		check(moved == at - 1);
		mprotect(user + at, page, PROT_READ | PROT_WRITE);
	}

	/* The same on the device's side, at any request boundary before it. */
	expect(ENXIO, transfer_on(fd, 0, VRAM_TO_DEVICE, address + length - MIB,
				  user, 8 * MIB, &moved));
	check(moved <= MIB);
	munmap(user, length);
	expect(0, release(fd, address));
}

static void test_copy(int fd)
{
	const uint64_t length = 2 * MIB;
	uint64_t a = allocate(fd, length), b = allocate(fd, length);
	uint8_t *from = map_pages(length, PROT_READ | PROT_WRITE);
	uint8_t *to = map_pages(length, PROT_READ | PROT_WRITE);
	struct vram_ioctl_copy args;

	fill_random(from, length);
	expect(0, put(fd, a, from, length));

#define COPY(...) ioctl(fd, VRAM_IOCTL_COPY, \
			(args = (struct vram_ioctl_copy){ __VA_ARGS__ }, &args))
	expect(0, COPY(.destination = b, .source = a, .length = length));
	check(args.moved == length);
	expect(0, get(fd, b, to, length));
	check(!memcmp(from, to, length));
	expect(0, COPY(.destination = b + 7, .source = a + 4099, .length = 70001,
		       .stream = STREAMS - 1));
	expect(0, get(fd, b, to, length));
	check(!memcmp(from + 4099, to + 7, 70001));
	check(!memcmp(from, to, 7) && !memcmp(from + 70008, to + 70008,
					      length - 70008));
	/* Side by side is no overlap. */
	expect(0, COPY(.destination = a + 4096, .source = a, .length = 4096));
	check(args.moved == 4096);

	expect(EINVAL, COPY(.destination = b, .source = a, .length = 0));
	expect(EINVAL, COPY(.destination = a, .source = a, .length = 1));
	expect(EINVAL, COPY(.destination = a + 4095, .source = a, .length = 4096));
	check(args.moved == 0);
	expect(EINVAL, COPY(.destination = a, .source = a + 1, .length = 4096));
	expect(EINVAL, COPY(.destination = b, .source = a, .length = 1,
			    .stream = STREAMS));
	expect(ENXIO, COPY(.destination = a, .source = a + length - 1, .length = 2));
	expect(ENXIO, COPY(.destination = b + length - 1, .source = a, .length = 2));
	expect(ENXIO, COPY(.destination = b, .source = 0, .length = 1));
	expect(ENXIO, COPY(.destination = ~0ULL, .source = a, .length = 2));
#undef COPY
	expect(0, release(fd, a));
	expect(0, release(fd, b));
	munmap(from, length);
	munmap(to, length);
}

static void test_fill(int fd)
{
	static uint8_t bytes[65536];
	uint64_t address = allocate(fd, sizeof(bytes));
	struct vram_ioctl_fill args;
	size_t i;

#define FILL(...) ioctl(fd, VRAM_IOCTL_FILL, \
			(args = (struct vram_ioctl_fill){ __VA_ARGS__ }, &args))
	expect(0, FILL(.address = address, .length = sizeof(bytes),
		       .pattern = 0x44332211, .width = 4));
	check(args.moved == sizeof(bytes));
	expect(0, FILL(.address = address + 2, .length = 6,
		       .pattern = 0x99bbaa, .width = 2));
	expect(0, FILL(.address = address + 9, .length = 1,
		       .pattern = 0x123477, .width = 1, .stream = 5));
	expect(0, get(fd, address, bytes, sizeof(bytes)));
	check(!memcmp(bytes, "\x11\x22\xaa\xbb\xaa\xbb\xaa\xbb\x11\x77\x33\x44", 12));
	for (i = 12; i < sizeof(bytes) && bytes[i] == 0x11 * (i % 4 + 1); i++)
		;
	check(i == sizeof(bytes));

	expect(EINVAL, FILL(.address = address, .length = 0, .width = 1));
	expect(EINVAL, FILL(.address = address, .length = 8, .width = 0));
	expect(EINVAL, FILL(.address = address, .length = 9, .width = 3));
	expect(EINVAL, FILL(.address = address, .length = 8, .width = 8));
	expect(EINVAL, FILL(.address = address + 1, .length = 4, .width = 2));
	expect(EINVAL, FILL(.address = address, .length = 6, .width = 4));
	expect(EINVAL, FILL(.address = address, .length = 1, .width = 1,
			    .stream = STREAMS));
	check(args.moved == 0);
	expect(ENXIO, FILL(.address = address + sizeof(bytes) - 1, .length = 2,
			   .width = 1));
	expect(ENXIO, FILL(.address = 0, .length = 1, .width = 1));
	expect(ENXIO, FILL(.address = ~0ULL - 3, .length = 8, .width = 4));
#undef FILL
	expect(0, release(fd, address));
}

static void test_fence(int fd)
{
	struct vram_ioctl_fence args = { .stream = 7 };

	expect(0, ioctl(fd, VRAM_IOCTL_FENCE, &args));
	args.flags = VRAM_IOCTL_FENCE_ALL;
	expect(0, ioctl(fd, VRAM_IOCTL_FENCE, &args));
	args.flags = 2;
	expect(EINVAL, ioctl(fd, VRAM_IOCTL_FENCE, &args));
	args = (struct vram_ioctl_fence){ .stream = STREAMS };
	expect(EINVAL, ioctl(fd, VRAM_IOCTL_FENCE, &args));
}

/* What one file allocated does not exist for another. */
static void test_foreign_handles(int fd)
{
	int other = open_device();
	uint64_t address = allocate(fd, 65536), own = allocate(other, 65536);
	struct vram_ioctl_query query = { .address = address };
	struct vram_ioctl_fill fill = {
		.address = address, .length = 4, .width = 4
	};
	struct vram_ioctl_copy copy = {
		.destination = own, .source = address, .length = 4
	};
	uint8_t byte = 0;

	expect(ENXIO, release(other, address));
	expect(ENXIO, get(other, address, &byte, 1));
	expect(ENXIO, put(other, address, &byte, 1));
	expect(ENXIO, ioctl(other, VRAM_IOCTL_QUERY, &query));
	expect(ENXIO, ioctl(other, VRAM_IOCTL_FILL, &fill));
	expect(ENXIO, ioctl(other, VRAM_IOCTL_COPY, &copy));
	copy = (struct vram_ioctl_copy){
		.destination = address, .source = own, .length = 4
	};
	expect(ENXIO, ioctl(other, VRAM_IOCTL_COPY, &copy));
	close(other);
	expect(0, get(fd, address, &byte, 1));
	expect(0, release(fd, address));
}

/* The memory of a file goes with the last descriptor of it. */
static void test_lifetime(int fd)
{
	struct vram_ioctl_info before = get_info(fd);
	int other = open_device(), copy, status;
	uint64_t address = allocate(other, MIB);
	uint8_t byte = 0;
	pid_t child;

	check(get_info(fd).allocated_bytes == before.allocated_bytes + MIB);
	check(get_info(fd).contexts == before.contexts + 1);
	copy = dup(other);
	close(other);
	expect(0, get(copy, address, &byte, 1));

	fflush(stdout);
	child = fork();
	if (!child)
		_exit(get(copy, address, &byte, 1) ? errno : 0);
	check(waitpid(child, &status, 0) == child && !status);
	expect(0, get(copy, address, &byte, 1));

	/* The child has the last one. */
	child = fork();
	if (!child) {
		usleep(300000);
		_exit(get(copy, address, &byte, 1) ? errno : 0);
	}
	close(copy);
	check(get_info(fd).contexts == before.contexts + 1);
	check(waitpid(child, &status, 0) == child && !status);
	check(get_info(fd).allocated_bytes == before.allocated_bytes);
	check(get_info(fd).contexts == before.contexts);
}

static void test_many_files(int fd)
{
	struct vram_ioctl_info before = get_info(fd);
	int files[100];
	size_t i;

	for (i = 0; i < ARRAY_LENGTH(files); i++) {
		files[i] = open_device();
		allocate(files[i], 4096);
	}
	check(get_info(fd).contexts == before.contexts + ARRAY_LENGTH(files));
	for (i = 0; i < ARRAY_LENGTH(files); i++)
		close(files[i]);
	check(get_info(fd).contexts == before.contexts);
	check(get_info(fd).allocated_bytes == before.allocated_bytes);
}

struct worker {
	pthread_t thread;
	int fd;
	uint32_t number;
	unsigned int mistakes;
};

static void *work(void *argument)
{
	const size_t length = 300 * KIB + 17;
	struct worker *worker = argument;
	uint8_t *bytes = malloc(length);
	struct vram_ioctl_alloc memory = { .length = length };
	unsigned int round;
	size_t i;

	if (ioctl(worker->fd, VRAM_IOCTL_ALLOC, &memory))
		worker->mistakes++;
	for (round = 0; round < 20; round++) {
		uint8_t value = worker->number * 20 + round;

		memset(bytes, value, length);
		if (transfer_on(worker->fd, worker->number, VRAM_TO_DEVICE,
				memory.address, bytes, length, NULL))
			worker->mistakes++;
		memset(bytes, ~value, length);
		if (transfer_on(worker->fd, worker->number, VRAM_FROM_DEVICE,
				memory.address, bytes, length, NULL))
			worker->mistakes++;
		for (i = 0; i < length; i++)
			worker->mistakes += bytes[i] != value;
	}
	if (release(worker->fd, memory.address))
		worker->mistakes++;
	free(bytes);
	return NULL;
}

static void test_threads(int fd)
{
	struct worker workers[8] = {};
	size_t i;

	for (i = 0; i < ARRAY_LENGTH(workers); i++) {
		workers[i].fd = fd;
		workers[i].number = i;
		pthread_create(&workers[i].thread, NULL, work, &workers[i]);
	}
	for (i = 0; i < ARRAY_LENGTH(workers); i++) {
		pthread_join(workers[i].thread, NULL);
		check(workers[i].mistakes == 0);
	}
}

/* Random arguments, most of them nearly right; nothing but errors may come. */
static void test_random_arguments(int fd)
{
	const uint64_t length = MIB;
	uint64_t address = allocate(fd, length);
	uint8_t *user = map_pages(length, PROT_READ | PROT_WRITE);
	const uint64_t likely[] = {
		0, 1, 3, 255, 4096, length, length - 1, address, address + 1,
		(uintptr_t)user, (uintptr_t)user + 4095, ~0ULL, 1ULL << 63,
	};
	unsigned int round, unlikely_errors = 0;

	for (round = 0; round < 3000; round++) {
		const struct call *call =
			&calls[next_random() % ARRAY_LENGTH(calls)];
		uint64_t words[32] = {};
		size_t i;
		int error;

		for (i = 0; i < call->size / 8; i++)
			if (next_random() % 4)
				words[i] = likely[next_random() % ARRAY_LENGTH(likely)];
		error = outcome(ioctl(fd, call->request, words));
		if (call->request == VRAM_IOCTL_ALLOC && !error)
			release(fd, words[2]);
		if (error && error != EINVAL && error != ENXIO &&
		    error != EFAULT && error != ENOMEM && error != EDQUOT)
			unlikely_errors++;
	}
	check(unlikely_errors == 0);
	/* It may have been freed by chance. */
	release(fd, address);
	munmap(user, length);
	get_info(fd);
}

int main(int argc, char **argv)
{
	int fd;

	if (argc > 1)
		path = argv[1];
	if (argc > 2)
		random_state = strtoull(argv[2], NULL, 0) ?: 1;
	page = sysconf(_SC_PAGESIZE);
	setvbuf(stdout, NULL, _IOLBF, 0);

	fd = open_device();
	test_version(fd);
	test_unknown_calls(fd);
	test_other_file_operations(fd);
	test_bad_pointers(fd);
	test_reserved_fields(fd);
	test_info(fd);
	test_alloc(fd);
	test_free(fd);
	test_query(fd);
	test_advise(fd);
	test_no_events(fd);
	test_transfer_shapes(fd);
	test_transfer_memory_kinds(fd);
	test_transfer_errors(fd);
	test_copy(fd);
	test_fill(fd);
	test_fence(fd);
	test_foreign_handles(fd);
	test_lifetime(fd);
	test_many_files(fd);
	test_threads(fd);
	test_random_arguments(fd);
	close(fd);

	printf("%u passed, %u failed\n", passed, failed);
	return failed ? 1 : 0;
}
