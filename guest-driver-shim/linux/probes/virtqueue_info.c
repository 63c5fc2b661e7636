// SPDX-License-Identifier: GPL-2.0-only
/* virtio_find_vqs() takes an array of struct virtqueue_info (6.11 and later). */
#include <linux/virtio.h>
#include <linux/virtio_config.h>

int vram_probe(struct virtio_device *vdev, struct virtqueue **vqs);
int vram_probe(struct virtio_device *vdev, struct virtqueue **vqs)
{
	struct virtqueue_info info[1] = { { .name = "probe", .callback = NULL } };

	return virtio_find_vqs(vdev, 1, vqs, info, NULL);
}
