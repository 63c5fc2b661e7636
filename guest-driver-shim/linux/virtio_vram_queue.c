// SPDX-License-Identifier: GPL-2.0-only
/*
 * virtio_vram: messages, submitting them and waiting for their answers.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "virtio_vram_priv.h"

static unsigned int timeout_ms = 10000;
module_param(timeout_ms, uint, 0644);
MODULE_PARM_DESC(timeout_ms, "Time without any sign of progress after which the device counts as broken (100 to 600000, default 10000)");

static struct kmem_cache *vram_message_cache;

/**
 * vram_messages_init - prepare for vram_message_alloc()
 *
 * Context: Process context.
 * Return: 0 or -ENOMEM.
 */
int vram_messages_init(void)
{
	vram_message_cache = KMEM_CACHE(vram_message, SLAB_HWCACHE_ALIGN);
	return vram_message_cache ? 0 : -ENOMEM;
}

/**
 * vram_messages_exit - undo vram_messages_init()
 *
 * Context: Process context, when no message is left.
 */
void vram_messages_exit(void)
{
	kmem_cache_destroy(vram_message_cache);
}

/**
 * vram_message_alloc - make a message
 * @opcode: what to ask for
 * @reply_bytes: room for a reply behind the response, may be 0
 *
 * Context: Process context.
 * Return: The message, with one reference for the caller, or NULL.
 */
struct vram_message *vram_message_alloc(u16 opcode, size_t reply_bytes)
{
	struct vram_message *msg;

	msg = kmem_cache_zalloc(vram_message_cache, GFP_KERNEL);
	if (!msg)
		return NULL;
	if (reply_bytes) {
		msg->reply = kzalloc(reply_bytes, GFP_KERNEL);
		if (!msg->reply) {
			kmem_cache_free(vram_message_cache, msg);
			return NULL;
		}
		msg->reply_bytes = reply_bytes;
	}
	refcount_set(&msg->refs, 1);
	init_completion(&msg->done);
	msg->request.opcode = cpu_to_le16(opcode);
	return msg;
}

/**
 * vram_message_name_context - fill in whose request it is
 * @msg: the message
 * @context: the context
 * @stream: the stream, 0 for control requests
 */
void vram_message_name_context(struct vram_message *msg,
			       const struct vram_context *context, u32 stream)
{
	msg->request.context = cpu_to_le32(context->number);
	msg->request.stream = cpu_to_le32(stream);
	msg->generation = context->generation;
}

/* Context: Process context, because marking pages dirty sleeps. */
static void vram_message_free(struct vram_message *msg)
{
	vram_data_unpin(msg);
	kfree(msg->reply);
	kmem_cache_free(vram_message_cache, msg);
}

/**
 * vram_message_put - give back the waiter's reference
 * @msg: the message, finished or abandoned or never submitted
 *
 * User memory stays pinned until the device has given back its reference too.
 *
 * Context: Process context.
 */
void vram_message_put(struct vram_message *msg)
{
	if (refcount_dec_and_test(&msg->refs))
		vram_message_free(msg);
}

/**
 * vram_deferred_work - free what the callbacks could not
 * @work: &vram_device.deferred_work
 */
void vram_deferred_work(struct work_struct *work)
{
	struct vram_device *vram =
		container_of(work, struct vram_device, deferred_work);
	struct llist_node *list = llist_del_all(&vram->deferred);
	struct vram_message *msg, *next;

	llist_for_each_entry_safe(msg, next, list, deferred) {
		if (msg->abandoned && !msg->error)
			vram_session_undo(msg);
		vram_message_free(msg);
	}
}

/* The table of vram_ioctl.h. */
static int vram_status_to_errno(u32 status)
{
	switch (status) {
	case VRAM_STATUS_OK:
		return 0;
	case VRAM_STATUS_BAD_REQUEST:
	case VRAM_STATUS_BAD_LENGTH:
	case VRAM_STATUS_BAD_ALIGNMENT:
	case VRAM_STATUS_BAD_STREAM:
	case VRAM_STATUS_OVERLAP:
		return -EINVAL;
	case VRAM_STATUS_BAD_ADDRESS:
		return -ENXIO;
	case VRAM_STATUS_OUT_OF_MEMORY:
		return -ENOMEM;
	case VRAM_STATUS_OVER_LIMIT:
		return -EDQUOT;
	case VRAM_STATUS_TOO_MANY:
		return -EMFILE;
	case VRAM_STATUS_DEVICE_LOST:
		return -ENODEV;
	case VRAM_STATUS_DATA_LOST:	/* as file systems say of checksums */
		return -EBADMSG;
	case VRAM_STATUS_NO_CONTEXT:	/* we opened it: the session is lost */
	case VRAM_STATUS_CANCELLED:	/* nor do we close it while it is used */
		return -ESTALE;
	case VRAM_STATUS_TRANSFER_FAILED:
	case VRAM_STATUS_BAD_CHAIN:
	case VRAM_STATUS_UNSUPPORTED:
	case VRAM_STATUS_WRONG_QUEUE:
	case VRAM_STATUS_NOT_READY:
	case VRAM_STATUS_BAD_VERSION:
	case VRAM_STATUS_BUFFER_TOO_SMALL:
	case VRAM_STATUS_INTERNAL:
	default:
		return -EIO;
	}
}

/*
 * Reads the answer the device wrote: its length before its fields, and each
 * field once.
 *
 * Context: Any, with &vram_queue.lock.
 * Return: The outcome of the request.
 */
static int vram_message_parse(struct vram_message *msg, u32 used)
{
	struct vram_device *vram = msg->queue->vram;
	bool hello = msg->request.opcode == cpu_to_le16(VRAM_OP_HELLO);
	bool fills = msg->reply_bytes || msg->from_device;
	u64 room = msg->reply_bytes + (msg->from_device ? msg->length : 0);
	struct virtio_vram_response response;
	u64 moved, most;

	if (used < VRAM_RESPONSE_BYTES || used - VRAM_RESPONSE_BYTES > room) {
		vram_warn_ratelimited(vram, "answer of %u bytes to request 0x%04x\n",
				      used, le16_to_cpu(msg->request.opcode));
		return -EIO;
	}
	response = msg->response;
	msg->status = le32_to_cpu(response.status);
	msg->value = le64_to_cpu(response.value);

	/* Without a new epoch, too, the session may be gone: a reconnection. */
	if (!hello && (le64_to_cpu(response.epoch) != vram->boot_epoch ||
		       msg->status == VRAM_STATUS_NOT_READY)) {
		vram_device_lose_session(vram);
		return -ESTALE;
	}
	if (response.tag != msg->request.tag) {
		vram_warn_ratelimited(vram, "wrong tag in the answer to request 0x%04x, status %u\n",
				      le16_to_cpu(msg->request.opcode),
				      msg->status);
		return -EIO;
	}
	moved = le64_to_cpu(response.moved);
	most = fills ? used - VRAM_RESPONSE_BYTES : msg->length;
	if (moved > most) {
		vram_warn_ratelimited(vram, "answer to request 0x%04x claims %llu bytes of %llu\n",
				      le16_to_cpu(msg->request.opcode), moved,
				      most);
		return -EIO;
	}
	if (msg->status == VRAM_STATUS_OK) {
		if (msg->length && moved != msg->length)
			return -EIO;
		msg->moved = moved;
	} else if (msg->status == VRAM_STATUS_TRANSFER_FAILED ||
		   msg->status == VRAM_STATUS_DEVICE_LOST ||
		   msg->status == VRAM_STATUS_DATA_LOST) {
		msg->moved = moved;
	}
	return vram_status_to_errno(msg->status);
}

/**
 * vram_message_answered - the device, or a reset of it, gave a message back
 * @msg: the message
 * @error: its outcome
 *
 * The device's reference is dropped before the waiter is woken: when there is
 * a waiter, it drops the last one, in process context.
 *
 * Context: Any, with &vram_queue.lock.
 */
void vram_message_answered(struct vram_message *msg, int error)
{
	struct vram_device *vram = msg->queue->vram;
	bool wake = !msg->finished;

	list_del(&msg->list);
	if (wake || msg->abandoned)
		msg->error = error;
	msg->finished = true;
	if (refcount_dec_and_test(&msg->refs)) {
		if (llist_add(&msg->deferred, &vram->deferred))
			queue_work(vram_workqueue, &vram->deferred_work);
	} else if (wake) {
		complete(&msg->done);
	}
}

/*
 * Leaves a message to the device.
 *
 * Return: Whether it had not been finished before.
 */
static bool vram_message_abandon(struct vram_message *msg)
{
	struct vram_queue *queue = msg->queue;
	unsigned long flags;
	bool abandoned;

	spin_lock_irqsave(&queue->lock, flags);
	abandoned = !msg->finished;
	if (abandoned) {
		msg->finished = true;
		msg->abandoned = true;
	}
	spin_unlock_irqrestore(&queue->lock, flags);
	return abandoned;
}

/**
 * vram_queue_forget - say that nobody will wait for an answer
 * @msg: the message, before it is submitted
 */
void vram_queue_forget(struct vram_message *msg)
{
	msg->finished = true;
	msg->abandoned = true;
}

/**
 * vram_timeout - the time the device may be silent
 *
 * Return: Jiffies.
 */
unsigned long vram_timeout(void)
{
	return msecs_to_jiffies(clamp(READ_ONCE(timeout_ms), 100U, 600000U));
}

/* The time of the last sign of progress that matters to a waiter. */
static unsigned long vram_quiet_since(struct vram_queue *queue,
				      bool any_progress, unsigned long begin)
{
	unsigned long progress = any_progress ?
		READ_ONCE(queue->vram->progress) : READ_ONCE(queue->progress);

	return time_after(progress, begin) ? progress : begin;
}

/*
 * How long a waiter may sleep before it has to look at the clock again, at
 * half time and at the end.
 *
 * Return: Jiffies; 0 if the time is up.
 */
static unsigned long vram_time_left(struct vram_queue *queue, bool any_progress,
				    unsigned long begin, bool *half_time)
{
	unsigned long now = jiffies;
	unsigned long timeout = vram_timeout();
	unsigned long quiet = now - vram_quiet_since(queue, any_progress, begin);

	/* An answer may come after we read the clock. */
	if ((long)quiet < 0)
		quiet = 0;
	*half_time = quiet >= timeout / 2;
	if (quiet >= timeout || now - begin >= VRAM_TIMEOUT_CAP * timeout)
		return 0;
	return *half_time ? timeout - quiet : timeout / 2 - quiet;
}

/**
 * vram_message_wait - wait for the answer to a submitted message
 * @msg: the message
 *
 * At half time without progress the device is asked whether it is alive: after
 * the daemon was started anew requests may be lost, and only an answer shows
 * the new epoch. When the time is up the device is given up.
 *
 * Context: Process context.
 * Return: 0, or what happened: the outcome the device told, -EINTR, -ETIMEDOUT
 *	   for the first to notice that the device does not answer, -ENODEV for
 *	   the others, -ESTALE.
 */
int vram_message_wait(struct vram_message *msg)
{
	struct vram_queue *queue = msg->queue;
	unsigned long begin = jiffies;

	/* A poll of the used ring before the first sleep would go here. */
	for (;;) {
		bool half_time;
		unsigned long left = vram_time_left(queue, msg->any_progress,
						    begin, &half_time);
		long ret;

		if (!left) {
			if (!vram_message_abandon(msg))
				return msg->error;
			vram_device_break(queue->vram, "a request was not answered in time");
			return -ETIMEDOUT;
		}
		if (half_time)
			vram_session_nudge(queue->vram);
		ret = wait_for_completion_killable_timeout(&msg->done, left);
		if (ret > 0)
			return msg->error;
		if (ret < 0)
			return vram_message_abandon(msg) ? -EINTR : msg->error;
	}
}

/**
 * vram_message_send - submit a message and wait for its answer
 * @queue: where to
 * @msg: the message; the caller's reference stays the caller's
 *
 * Context: Process context.
 * Return: As vram_queue_submit() and vram_message_wait().
 */
int vram_message_send(struct vram_queue *queue, struct vram_message *msg)
{
	int err = vram_queue_submit(queue, msg);

	return err ? err : vram_message_wait(msg);
}

/* Whether the device's state allows a message. */
static int vram_message_permit(struct vram_device *vram,
			       const struct vram_message *msg)
{
	switch (READ_ONCE(vram->state)) {
	case VRAM_READY:
		if (msg->generation &&
		    msg->generation != READ_ONCE(vram->generation))
			return -ESTALE;
		return 0;
	case VRAM_STARTING:
	case VRAM_STALE:
		if (msg->request.opcode == cpu_to_le16(VRAM_OP_HELLO))
			return 0;
		return -ESTALE;
	default:
		return -ENODEV;
	}
}

/* As vram_queue_try_submit(); @reaped helps to wait for room. */
static int vram_queue_add(struct vram_queue *queue, struct vram_message *msg,
			  unsigned int *reaped)
{
	struct scatterlist request, response, reply, *sgs[4];
	struct vram_device *vram = queue->vram;
	unsigned int out = 0, in = 0;
	unsigned long flags;
	bool notify = false;
	int index, err;

	msg->queue = queue;
	msg->request.tag = cpu_to_le64(atomic64_inc_return(&vram->tag));
	sg_init_one(&request, &msg->request, sizeof(msg->request));
	sg_init_one(&response, &msg->response, sizeof(msg->response));
	sgs[out++] = &request;
	if (msg->data && !msg->from_device)
		sgs[out++] = msg->data;
	sgs[out + in++] = &response;
	if (msg->data && msg->from_device)
		sgs[out + in++] = msg->data;
	if (msg->reply) {
		sg_init_one(&reply, msg->reply, msg->reply_bytes);
		sgs[out + in++] = &reply;
	}

	index = srcu_read_lock(&vram->rings);
	spin_lock_irqsave(&queue->lock, flags);
	*reaped = queue->reaped;
	err = vram_message_permit(vram, msg);
	/* There may be fewer queues than before the system slept. */
	if (!err && !queue->vq)
		err = -ENODEV;
	if (!err)
		err = virtqueue_add_sgs(queue->vq, sgs, out, in, msg, GFP_ATOMIC);
	if (!err) {
		if (list_empty(&queue->pending)) {
			queue->progress = jiffies;
			WRITE_ONCE(vram->progress, queue->progress);
		}
		refcount_inc(&msg->refs);
		list_add_tail(&msg->list, &queue->pending);
		notify = virtqueue_kick_prepare(queue->vq);
	} else if (err == -ENOSPC && list_empty(&queue->pending)) {
		/* Nothing will make room. */
		err = -ENOMEM;
	}
	spin_unlock_irqrestore(&queue->lock, flags);
	/* A broken ring fails what we have just added. */
	if (err == -EIO || (notify && !virtqueue_notify(queue->vq)))
		vram_device_break(vram, "a ring is broken");
	srcu_read_unlock(&vram->rings, index);
	return err == -EIO ? -ENODEV : err;
}

/**
 * vram_queue_try_submit - give a message to the device if there is room
 * @queue: where to
 * @msg: the message
 *
 * When it succeeds the device has a reference of its own, and the caller has
 * to wait for the message unless it called vram_queue_forget() before.
 *
 * Context: Process context; does not sleep.
 * Return: 0, -ENOSPC without room, -ENOMEM, -ENODEV, -ESTALE.
 */
int vram_queue_try_submit(struct vram_queue *queue, struct vram_message *msg)
{
	unsigned int reaped;

	return vram_queue_add(queue, msg, &reaped);
}

/**
 * vram_queue_submit - give a message to the device, waiting for room
 * @queue: where to
 * @msg: the message, see vram_queue_try_submit()
 *
 * Context: Process context.
 * Return: 0, -ENOMEM, -ENODEV, -ESTALE, -EINTR, -ETIMEDOUT.
 */
int vram_queue_submit(struct vram_queue *queue, struct vram_message *msg)
{
	struct vram_device *vram = queue->vram;
	unsigned long begin = jiffies;
	unsigned int reaped;

	for (;;) {
		int err = vram_queue_add(queue, msg, &reaped);
		unsigned long left;
		bool half_time;
		long ret;

		if (err != -ENOSPC)
			return err;
		left = vram_time_left(queue, msg->any_progress, begin,
				      &half_time);
		if (!left) {
			vram_device_break(vram, "a full ring did not move");
			return -ETIMEDOUT;
		}
		if (half_time)
			vram_session_nudge(vram);
		ret = wait_event_killable_timeout(queue->room,
						  READ_ONCE(queue->reaped) != reaped ||
						  vram_message_permit(vram, msg),
						  left);
		if (ret < 0)
			return -EINTR;
	}
}

/**
 * vram_queue_callback - take what the device gave back
 * @vq: a control or request queue
 *
 * Context: Interrupt.
 */
void vram_queue_callback(struct virtqueue *vq)
{
	struct vram_device *vram = vq->vdev->priv;
	struct vram_queue *queue = &vram->queues[vq->index];
	struct vram_message *msg;
	unsigned long flags;
	bool broken = false;
	unsigned int used;

	spin_lock_irqsave(&queue->lock, flags);
	do {
		virtqueue_disable_cb(vq);
		while ((msg = virtqueue_get_buf(vq, &used))) {
			bool awaited = !msg->finished;
			int error = 0;

			/* What was failed early is not read any more. */
			if (awaited || msg->abandoned)
				error = vram_message_parse(msg, used);
			if (awaited) {
				WRITE_ONCE(queue->progress, jiffies);
				WRITE_ONCE(vram->progress, jiffies);
			}
			queue->reaped++;
			vram_message_answered(msg, error);
		}
		broken = virtqueue_is_broken(vq);
	} while (!broken && !virtqueue_enable_cb(vq));
	spin_unlock_irqrestore(&queue->lock, flags);

	if (broken)
		vram_device_break(vram, "a ring is broken");
	if (wq_has_sleeper(&queue->room))
		wake_up_all(&queue->room);
}
