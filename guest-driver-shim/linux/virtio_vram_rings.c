// SPDX-License-Identifier: GPL-2.0-only
/*
 * virtio_vram: finding the queues, starting and stopping the device.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/virtio_config.h>

#include "virtio_vram_conftest.h"
#include "virtio_vram_priv.h"

#ifdef HAVE_VIRTQUEUE_INFO
static int vram_find_vqs(struct vram_device *vram, unsigned int count,
			 struct virtqueue **vqs)
{
	struct virtqueue_info *info;
	unsigned int i;
	int err;

	info = kcalloc(count, sizeof(*info), GFP_KERNEL);
	if (!info)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		info[i].name = vram->queues[i].name;
		info[i].callback = i == VRAM_QUEUE_EVENT ?
			vram_events_callback : vram_queue_callback;
	}
	err = virtio_find_vqs(vram->vdev, count, vqs, info, NULL);
	kfree(info);
	return err;
}
#else
static int vram_find_vqs(struct vram_device *vram, unsigned int count,
			 struct virtqueue **vqs)
{
	vq_callback_t **callbacks;
	const char **names;
	unsigned int i;
	int err = -ENOMEM;

	callbacks = kcalloc(count, sizeof(*callbacks), GFP_KERNEL);
	names = kcalloc(count, sizeof(*names), GFP_KERNEL);
	if (callbacks && names) {
		for (i = 0; i < count; i++) {
			names[i] = vram->queues[i].name;
			callbacks[i] = i == VRAM_QUEUE_EVENT ?
				vram_events_callback : vram_queue_callback;
		}
		err = virtio_find_vqs(vram->vdev, count, vqs, callbacks, names,
				      NULL);
	}
	kfree(names);
	kfree(callbacks);
	return err;
}
#endif

/*
 * Return: The number of queues when each has an interrupt vector of its own,
 *	   behind the one for configuration changes; else 0.
 */
static unsigned int vram_interrupt_vectors(struct vram_device *vram)
{
	struct device *parent = vram->vdev->dev.parent;

	if (!parent || !dev_is_pci(parent) ||
	    !to_pci_dev(parent)->msix_enabled ||
	    pci_irq_vector(to_pci_dev(parent), vram->queue_count) < 0)
		return 0;
	return vram->queue_count;
}

/*
 * Finds as many queues as there are, up to &vram_device.queue_limit: nothing
 * says how many the frontend offers but that asking for too many fails.
 */
static int vram_rings_find(struct vram_device *vram)
{
	unsigned int count = vram->queue_limit;
	struct virtqueue **vqs;
	unsigned int i;
	int err;

	vqs = kcalloc(count, sizeof(*vqs), GFP_KERNEL);
	if (!vqs)
		return -ENOMEM;
	for (;;) {
		err = vram_find_vqs(vram, count, vqs);
		if (!err || err == -ENOMEM || count == VRAM_QUEUES_MIN)
			break;
		count--;
	}
	if (!err) {
		vram->queue_count = count;
		vram->request_queues = count - VRAM_QUEUE_FIRST_REQUEST;
		for (i = 0; i < count; i++)
			vram->queues[i].vq = vqs[i];
	}
	kfree(vqs);
	return err;
}

/* After a reset of the device. */
static void vram_rings_delete(struct vram_device *vram)
{
	unsigned int i;

	vram->vdev->config->del_vqs(vram->vdev);
	for (i = 0; i < vram->queue_count; i++)
		vram->queues[i].vq = NULL;
}

/**
 * vram_rings_start - find the queues and make the device ready
 * @vram: the device, reset and with features negotiated
 *
 * Context: Process context.
 * Return: 0 or what keeps the device from being used.
 */
int vram_rings_start(struct vram_device *vram)
{
	struct virtio_device *vdev = vram->vdev;
	unsigned int i, size = VRAM_MAX_SEGMENTS + 2;
	struct vram_queue *queue;
	unsigned long flags;
	int err;

	err = vram_rings_find(vram);
	if (err) {
		dev_err(&vdev->dev, "fewer than %d queues could be set up: error %d\n",
			VRAM_QUEUES_MIN, err);
		return err;
	}
	for (i = VRAM_QUEUE_FIRST_REQUEST; i < vram->queue_count; i++)
		size = min(size, virtqueue_get_vring_size(vram->queues[i].vq));
	if (size < 4) {
		dev_err(&vdev->dev, "queues of %u entries are too small\n", size);
		virtio_reset_device(vdev);
		vram_rings_delete(vram);
		return -EINVAL;
	}
	/* No chain may be longer than the queue; request and response count. */
	vram->max_segments = min(vram->config_segments, size - 2);
	vram->max_segment_bytes =
		round_down(min_t(size_t, virtio_max_dma_size(vdev),
				 VRAM_TRANSFER_MAX), PAGE_SIZE);
	vram->interrupt_vectors = vram_interrupt_vectors(vram);

	vram->rings_live = true;
	virtio_device_ready(vdev);

	queue = &vram->queues[VRAM_QUEUE_EVENT];
	spin_lock_irqsave(&queue->lock, flags);
	size = min(vram->event_count, virtqueue_get_vring_size(queue->vq));
	for (i = 0; i < size; i++)
		vram_events_post(queue, &vram->events[i]);
	virtqueue_kick(queue->vq);
	spin_unlock_irqrestore(&queue->lock, flags);
	return 0;
}

/* The device has been reset: gives back all that it had. */
static void vram_queue_drain(struct vram_queue *queue, int error)
{
	bool events = queue == &queue->vram->queues[VRAM_QUEUE_EVENT];
	unsigned long flags;
	void *token;

	spin_lock_irqsave(&queue->lock, flags);
	while ((token = virtqueue_detach_unused_buf(queue->vq)))
		if (!events)
			vram_message_answered(token, error);
	spin_unlock_irqrestore(&queue->lock, flags);
	wake_up_all(&queue->room);
}

/**
 * vram_rings_stop - reset the device and delete its queues
 * @vram: the device, in a state that permits no message
 * @error: outcome of the messages it still has
 *
 * The order is what makes it safe: those who are just submitting are waited
 * for; the reset makes the device let go of all memory; then what it had is
 * given back, and the callbacks end with the queues.
 *
 * Context: Process context.
 */
void vram_rings_stop(struct vram_device *vram, int error)
{
	unsigned int i;

	if (!vram->rings_live)
		return;
	vram->rings_live = false;
	synchronize_srcu(&vram->rings);
	virtio_reset_device(vram->vdev);
	for (i = 0; i < vram->queue_count; i++)
		vram_queue_drain(&vram->queues[i], error);
	vram_rings_delete(vram);
	flush_work(&vram->deferred_work);
}

/**
 * vram_rings_fail - end all waits for the device
 * @vram: the device, in a state that permits no message
 * @error: what those who wait are told
 *
 * The device keeps the messages and the memory they name.
 *
 * Context: Any.
 */
void vram_rings_fail(struct vram_device *vram, int error)
{
	struct vram_message *msg;
	struct vram_queue *queue;
	unsigned long flags;
	unsigned int i;

	for (i = 0; i < vram->queue_limit; i++) {
		queue = &vram->queues[i];
		spin_lock_irqsave(&queue->lock, flags);
		list_for_each_entry(msg, &queue->pending, list) {
			if (msg->finished)
				continue;
			msg->error = error;
			msg->finished = true;
			complete(&msg->done);
		}
		spin_unlock_irqrestore(&queue->lock, flags);
		wake_up_all(&queue->room);
	}
	wake_up_all(&vram->state_wait);
}
