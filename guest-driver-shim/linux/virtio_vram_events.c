// SPDX-License-Identifier: GPL-2.0-only
/*
 * virtio_vram: what the device tells without being asked.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/build_bug.h>
#include <linux/module.h>
#include <linux/scatterlist.h>

#include "virtio_vram_priv.h"

static_assert(sizeof(struct virtio_vram_event) == VRAM_EVENT_BYTES);
static_assert(!(VRAM_EVENT_LOG & (VRAM_EVENT_LOG - 1)));

/**
 * vram_events_init - prepare a device's log
 * @vram: the device
 */
void vram_events_init(struct vram_device *vram)
{
	spin_lock_init(&vram->event_log.lock);
	init_waitqueue_head(&vram->event_log.wait);
}

/**
 * vram_events_post - give a buffer to the device
 * @queue: the event queue
 * @event: the buffer
 *
 * Context: With the queue's lock.
 */
void vram_events_post(struct vram_queue *queue, struct virtio_vram_event *event)
{
	struct scatterlist sg;

	memset(event, 0, sizeof(*event));
	sg_init_one(&sg, event, sizeof(*event));
	/* There is room: we post what fits, and again what came back. */
	virtqueue_add_inbuf(queue->vq, &sg, 1, event, GFP_ATOMIC);
}

/* Kinds nobody knows are passed on as well: programs may be newer than we. */
static void vram_events_log(struct vram_device *vram,
			    const struct virtio_vram_event *event)
{
	struct vram_event_log *log = &vram->event_log;
	unsigned long flags;

	if (event->kind == cpu_to_le32(VRAM_EVENT_GPU_LOST))
		vram_info_ratelimited(vram, "GPU %llu is lost, and the memory on it\n",
				      le64_to_cpu(event->value));
	spin_lock_irqsave(&log->lock, flags);
	log->events[log->next % VRAM_EVENT_LOG] = *event;
	log->next++;
	spin_unlock_irqrestore(&log->lock, flags);
	wake_up_interruptible(&log->wait);
}

/**
 * vram_events_callback - take what the device tells
 * @vq: the event queue
 *
 * Context: Interrupt.
 */
void vram_events_callback(struct virtqueue *vq)
{
	struct vram_device *vram = vq->vdev->priv;
	struct vram_queue *queue = &vram->queues[vq->index];
	struct virtio_vram_event *buffer, event;
	unsigned long flags;
	unsigned int used;

	spin_lock_irqsave(&queue->lock, flags);
	do {
		virtqueue_disable_cb(vq);
		while ((buffer = virtqueue_get_buf(vq, &used))) {
			event = *buffer;
			vram_events_post(queue, buffer);
			if (used < sizeof(event))
				continue;
			/* Of a session that opens only HELLO's answer tells the epoch. */
			if (READ_ONCE(vram->state) == VRAM_READY &&
			    le64_to_cpu(event.epoch) != vram->boot_epoch)
				vram_device_lose_session(vram);
			else
				vram_events_log(vram, &event);
		}
	} while (!virtqueue_is_broken(vq) && !virtqueue_enable_cb(vq));
	virtqueue_kick(vq);
	spin_unlock_irqrestore(&queue->lock, flags);
}

/**
 * vram_events_follow - hear of events from now on
 * @vram: the device
 * @cursor: where to begin, on return
 *
 * Context: Process context.
 */
void vram_events_follow(struct vram_device *vram,
			struct vram_event_cursor *cursor)
{
	struct vram_event_log *log = &vram->event_log;

	spin_lock_irq(&log->lock);
	cursor->next = log->next;
	spin_unlock_irq(&log->lock);
}

/**
 * vram_events_waiting - see whether there is an event to read
 * @vram: the device
 * @cursor: how far was read
 *
 * Context: Process context.
 * Return: Whether there is.
 */
bool vram_events_waiting(struct vram_device *vram,
			 const struct vram_event_cursor *cursor)
{
	struct vram_event_log *log = &vram->event_log;
	bool waiting;

	spin_lock_irq(&log->lock);
	waiting = cursor->next != log->next;
	spin_unlock_irq(&log->lock);
	return waiting;
}

/**
 * vram_events_read - read the next event
 * @vram: the device
 * @cursor: how far was read
 * @event: the event, on success; %VRAM_EVENT_MISSED instead of those that are
 *	no longer there
 *
 * Context: Process context.
 * Return: Whether there was one.
 */
bool vram_events_read(struct vram_device *vram,
		      struct vram_event_cursor *cursor,
		      struct virtio_vram_event *event)
{
	struct vram_event_log *log = &vram->event_log;
	u64 behind;

	spin_lock_irq(&log->lock);
	behind = log->next - cursor->next;
	if (behind > VRAM_EVENT_LOG) {
		memset(event, 0, sizeof(*event));
		event->kind = cpu_to_le32(VRAM_EVENT_MISSED);
		event->value = cpu_to_le64(behind - VRAM_EVENT_LOG);
		event->epoch = log->events[log->next % VRAM_EVENT_LOG].epoch;
		cursor->next = log->next - VRAM_EVENT_LOG;
	} else if (behind) {
		*event = log->events[cursor->next % VRAM_EVENT_LOG];
		cursor->next++;
	}
	spin_unlock_irq(&log->lock);
	return behind;
}
