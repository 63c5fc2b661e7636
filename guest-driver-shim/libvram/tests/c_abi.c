/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses every function of vram.h, as a program would. Without an argument it
 * expects a device; with one, that this path cannot be opened.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vram.h"

#define CHECK(condition) do { \
	if (!(condition)) { \
		fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
		exit(1); \
	} \
} while (0)

static int refused(const char *path)
{
	struct vram_device *device = NULL;
	int error = vram_open(path, &device);

	CHECK(error < 0 && !device);
	printf("%d %s\n", error, vram_strerror(error));
	return 0;
}

int main(int argc, char **argv)
{
	struct vram_placement placement;
	struct vram_extent extents[4];
	struct vram_version version;
	struct vram_device *device;
	struct vram_event event;
	struct vram_gpu gpus[8];
	struct vram_info info;
	uint64_t address, moved;
	char text[] = "hello", back[11] = "";

	if (argc > 1)
		return refused(argv[1]);
	CHECK(vram_open(NULL, &device) == 0);
	CHECK(vram_fd(device) > 2);
	CHECK(vram_version(device, &version) == 0 && version.ioctl_version == 1);
	CHECK(vram_info(device, &info, gpus, 8) == 0 && info.gpu_count == 2);
	CHECK(!strcmp(info.slice_name, "fake") && !strcmp(gpus[1].name, "Fake GPU one"));
	CHECK(vram_alloc(device, info.limit_bytes + 1, 0, &address) == -EDQUOT);
	CHECK(vram_alloc(device, 40 << 20, 2 << 20, &address) == 0);
	CHECK(vram_query(device, address + 5, &placement, extents, 2) == 0);
	CHECK(placement.base == address && placement.length == 40 << 20 && placement.extent_total == 3);
	CHECK(extents[1].gpu == 1 && extents[1].tier == VRAM_TIER_GPU);
	CHECK(extents[1].gpu != VRAM_GPU_NONE && extents[1].tier != VRAM_TIER_DAMAGED);
	CHECK(vram_advise(device, address, 40 << 20, VRAM_ADVICE_PREFER_GPU, 1) == 0);
	CHECK(vram_advise(device, address, 40 << 20, VRAM_ADVICE_PREFER_GPU, 2) == -EINVAL);
	CHECK(vram_advise(device, address + 1, 40 << 20, VRAM_ADVICE_PREFETCH, 0) == -ENXIO);
	CHECK(vram_next_event(device, &event, -1) == 0 && event.kind == VRAM_EVENT_GPU_LOST && event.value == 1);
	CHECK(vram_next_event(device, &event, 0) == 0 && event.kind == VRAM_EVENT_DATA_LOST);
	CHECK(event.value != 0 && event.extra == 4096);
	CHECK(vram_next_event(device, &event, 0) == 0 && event.kind == VRAM_EVENT_LIMIT_CHANGED);
	CHECK(vram_next_event(device, &event, 0) == 0 && event.kind == VRAM_EVENT_MISSED && event.value == 5);
	CHECK(vram_next_event(device, &event, 5) == -EAGAIN);
	CHECK(vram_next_event(device, NULL, 0) == -EFAULT);
	CHECK(vram_fill(device, 0, address, 4096, 0x2a2a, 2, &moved) == 0 && moved == 4096);
	CHECK(vram_write(device, 1, address, text, 5, NULL) == 0);
	CHECK(vram_copy(device, 1, address + (20 << 20), address, 10, &moved) == 0 && moved == 10);
	CHECK(vram_fence(device, VRAM_ALL_STREAMS) == 0);
	CHECK(vram_read(device, 2, address + (20 << 20), back, 10, &moved) == 0 && moved == 10);
	CHECK(!strcmp(back, "hello*****"));
	CHECK(vram_read(device, 2, address - 1, back, 10, &moved) == -ENXIO && moved == 0);
	CHECK(vram_free(device, address) == 0);
	CHECK(vram_free(device, address) == -ENXIO);
	CHECK(vram_close(device) == 0);
	CHECK(vram_alloc(NULL, 1, 0, &address) == -EFAULT);
	puts("ok");
	return 0;
}
