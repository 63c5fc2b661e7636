// SPDX-License-Identifier: GPL-2.0-only
/*
 * virtio_vram: control requests.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/build_bug.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "virtio_vram_priv.h"
#include "vram_ioctl.h"

/* The first minor version of the ABI that has ADVISE. */
#define VRAM_ABI_MINOR_ADVISE	1

#define VRAM_BODY_FITS(type) \
	static_assert(sizeof(type) == sizeof_field(struct virtio_vram_request, body))
VRAM_BODY_FITS(struct virtio_vram_hello);
VRAM_BODY_FITS(struct virtio_vram_context_open);
VRAM_BODY_FITS(struct virtio_vram_alloc);
VRAM_BODY_FITS(struct virtio_vram_free);
VRAM_BODY_FITS(struct virtio_vram_query);
VRAM_BODY_FITS(struct virtio_vram_advise);
static_assert(sizeof(struct virtio_vram_request) == VRAM_REQUEST_BYTES);
static_assert(sizeof(struct virtio_vram_response) == VRAM_RESPONSE_BYTES);

static int vram_control(struct vram_device *vram, struct vram_message *msg)
{
	/* FREE and CONTEXT_CLOSE wait for data requests. */
	msg->any_progress = true;
	return vram_message_send(&vram->queues[VRAM_QUEUE_CONTROL], msg);
}

/**
 * vram_session_hello - open or resume the session
 * @vram: the device, STARTING or STALE
 *
 * On success the device is READY.
 *
 * Context: Process context.
 * Return: 0 or an error.
 */
int vram_session_hello(struct vram_device *vram)
{
	struct virtio_vram_hello_reply *reply;
	struct virtio_vram_hello *hello;
	struct vram_message *msg;
	bool ready = false;
	u64 epoch, transfer;
	int err;

	msg = vram_message_alloc(VRAM_OP_HELLO, sizeof(*reply));
	if (!msg)
		return -ENOMEM;
	hello = (void *)msg->request.body;
	hello->abi_major = cpu_to_le16(VRAM_ABI_MAJOR);
	hello->abi_minor = cpu_to_le16(VRAM_ABI_MINOR);
	hello->driver_epoch = cpu_to_le64(vram->driver_epoch);
	err = vram_control(vram, msg);
	if (err)
		goto put;

	err = -EPROTO;
	reply = msg->reply;
	if (msg->moved < sizeof(*reply) ||
	    le16_to_cpu(reply->abi_major) != VRAM_ABI_MAJOR)
		goto put;
	transfer = min3(vram->config_transfer,
			le64_to_cpu(reply->max_transfer_bytes),
			(u64)VRAM_TRANSFER_MAX);
	if (transfer < PAGE_SIZE)
		goto put;

	err = 0;
	epoch = le64_to_cpu(msg->response.epoch);
	spin_lock_irq(&vram->state_lock);
	if (vram->state == VRAM_STARTING || vram->state == VRAM_STALE) {
		if (epoch != vram->boot_epoch ||
		    !(reply->flags & cpu_to_le32(VRAM_DEVICE_RESUMED)))
			WRITE_ONCE(vram->generation, vram->generation + 1 ?: 1);
		vram->boot_epoch = epoch;
		vram->hello = *reply;
		vram->max_transfer = round_down(transfer, PAGE_SIZE);
		WRITE_ONCE(vram->state, VRAM_READY);
		ready = true;
	}
	spin_unlock_irq(&vram->state_lock);
	if (!ready)
		err = -ENODEV;
	wake_up_all(&vram->state_wait);
put:
	vram_message_put(msg);
	return err;
}

/**
 * vram_session_info - ask for the figures of the slice and its GPUs
 * @vram: the device
 * @answer: on success a message whose reply is a &struct virtio_vram_info_reply
 *	and as many entries as that says; the caller puts it
 *
 * Context: Process context.
 * Return: 0 or an error.
 */
int vram_session_info(struct vram_device *vram, struct vram_message **answer)
{
	const size_t head = sizeof(struct virtio_vram_info_reply);
	const size_t entry = sizeof(struct virtio_vram_gpu_entry);
	u32 count = min_t(u32, le32_to_cpu(vram->hello.gpu_count),
			  VRAM_GPUS_MAX);
	const struct virtio_vram_info_reply *reply;
	struct vram_message *msg;
	int err, attempt;

	for (attempt = 0; attempt < 3; attempt++) {
		msg = vram_message_alloc(VRAM_OP_INFO, head + count * entry);
		if (!msg)
			return -ENOMEM;
		err = vram_control(vram, msg);
		if (!err) {
			reply = msg->reply;
			if (msg->moved >= head &&
			    le32_to_cpu(reply->gpu_count) <=
			    (msg->moved - head) / entry) {
				*answer = msg;
				return 0;
			}
			err = -EIO;
			vram_message_put(msg);
			break;
		}
		/* The value is only there when the device gave an answer. */
		if (err != -EIO || msg->status != VRAM_STATUS_BUFFER_TOO_SMALL ||
		    msg->value < head ||
		    msg->value > head + VRAM_GPUS_MAX * entry) {
			vram_message_put(msg);
			break;
		}
		/* A GPU has been added since HELLO. */
		count = DIV_ROUND_UP((u32)msg->value - head, entry);
		vram_message_put(msg);
	}
	return err;
}

/**
 * vram_session_nudge - make the device answer something, to see its epoch
 * @vram: the device
 *
 * Context: Process context.
 */
void vram_session_nudge(struct vram_device *vram)
{
	unsigned long last = READ_ONCE(vram->nudged);
	struct vram_message *msg;

	if (time_before(jiffies, last + vram_timeout() / 4) ||
	    cmpxchg(&vram->nudged, last, jiffies) != last)
		return;
	/* The session begins with HELLO: nothing but INFO is safe to ask. */
	msg = vram_message_alloc(VRAM_OP_INFO,
				 sizeof(struct virtio_vram_info_reply));
	if (!msg)
		return;
	vram_queue_forget(msg);
	vram_queue_try_submit(&vram->queues[VRAM_QUEUE_CONTROL], msg);
	vram_message_put(msg);
}

/**
 * vram_context_open - open a context for the calling process
 * @vram: the device
 * @context: filled in on success
 *
 * Context: Process context.
 * Return: 0 or an error.
 */
int vram_context_open(struct vram_device *vram, struct vram_context *context)
{
	struct virtio_vram_context_open *body;
	struct vram_message *msg;
	char comm[TASK_COMM_LEN];
	int err;

	msg = vram_message_alloc(VRAM_OP_CONTEXT_OPEN, 0);
	if (!msg)
		return -ENOMEM;
	body = (void *)msg->request.body;
	get_task_comm(comm, current);
	snprintf(body->label, sizeof(body->label), "%s %d", comm,
		 task_tgid_nr(current));
	msg->generation = READ_ONCE(vram->generation);
	err = vram_control(vram, msg);
	if (!err && (!msg->value || msg->value > U32_MAX))
		err = -EIO;
	if (!err) {
		context->generation = msg->generation;
		/* The number says that the context is open. */
		smp_store_release(&context->number, (u32)msg->value);
	}
	vram_message_put(msg);
	return err;
}

/**
 * vram_context_close_message - make a message close a context
 * @msg: a message made for %VRAM_OP_CONTEXT_CLOSE
 * @context: the context
 *
 * The answer matters to nobody: control requests are carried out in order.
 */
void vram_context_close_message(struct vram_message *msg,
				const struct vram_context *context)
{
	vram_message_name_context(msg, context, 0);
	vram_queue_forget(msg);
}

/**
 * vram_memory_alloc - allocate device memory
 * @vram: the device
 * @context: who will own it
 * @length: bytes
 * @alignment: power of two, or 0
 * @address: device address, on success
 *
 * Context: Process context.
 * Return: 0 or an error.
 */
int vram_memory_alloc(struct vram_device *vram,
		      const struct vram_context *context, u64 length,
		      u64 alignment, u64 *address)
{
	struct virtio_vram_alloc *body;
	struct vram_message *msg;
	int err;

	msg = vram_message_alloc(VRAM_OP_ALLOC, 0);
	if (!msg)
		return -ENOMEM;
	vram_message_name_context(msg, context, 0);
	body = (void *)msg->request.body;
	body->length = cpu_to_le64(length);
	body->alignment = cpu_to_le64(alignment);
	err = vram_control(vram, msg);
	if (!err)
		*address = msg->value;
	vram_message_put(msg);
	return err;
}

static void vram_memory_free_message(struct vram_message *msg,
				     const struct vram_context *context,
				     u64 address)
{
	struct virtio_vram_free *body = (void *)msg->request.body;

	vram_message_name_context(msg, context, 0);
	body->address = cpu_to_le64(address);
}

/**
 * vram_memory_free - free device memory
 * @vram: the device
 * @context: who owns it
 * @address: as vram_memory_alloc() told
 *
 * Context: Process context.
 * Return: 0 or an error.
 */
int vram_memory_free(struct vram_device *vram,
		     const struct vram_context *context, u64 address)
{
	struct vram_message *msg;
	int err;

	msg = vram_message_alloc(VRAM_OP_FREE, 0);
	if (!msg)
		return -ENOMEM;
	vram_memory_free_message(msg, context, address);
	err = vram_control(vram, msg);
	vram_message_put(msg);
	return err;
}

/**
 * vram_memory_query - ask where an allocation lies
 * @vram: the device
 * @context: who owns it
 * @address: any address in it
 * @first: extents to skip
 * @capacity: extents wanted, at most %VRAM_EXTENTS_MAX
 * @answer: on success a message whose reply is a
 *	&struct virtio_vram_query_reply and as many extents as that says, not more
 *	than @capacity; the caller puts it
 *
 * Context: Process context.
 * Return: 0 or an error.
 */
int vram_memory_query(struct vram_device *vram,
		      const struct vram_context *context, u64 address, u32 first,
		      u32 capacity, struct vram_message **answer)
{
	const size_t head = sizeof(struct virtio_vram_query_reply);
	const size_t extent = sizeof(struct virtio_vram_extent);
	const struct virtio_vram_query_reply *reply;
	struct virtio_vram_query *body;
	struct vram_message *msg;
	int err;

	msg = vram_message_alloc(VRAM_OP_QUERY, head + capacity * extent);
	if (!msg)
		return -ENOMEM;
	vram_message_name_context(msg, context, 0);
	body = (void *)msg->request.body;
	body->address = cpu_to_le64(address);
	body->first_extent = cpu_to_le32(first);
	err = vram_control(vram, msg);
	if (!err) {
		reply = msg->reply;
		if (msg->moved < head || le32_to_cpu(reply->extent_count) >
		    (msg->moved - head) / extent)
			err = -EIO;
	}
	if (err) {
		vram_message_put(msg);
		return err;
	}
	*answer = msg;
	return 0;
}

/**
 * vram_memory_advise - say how a range will be used
 * @vram: the device
 * @context: who owns it
 * @args: as the caller gave it, reserved fields checked
 *
 * Context: Process context.
 * Return: 0 or an error; -EOPNOTSUPP if the device is too old to be asked.
 */
int vram_memory_advise(struct vram_device *vram,
		       const struct vram_context *context,
		       const struct vram_ioctl_advise *args)
{
	struct virtio_vram_advise *body;
	struct vram_message *msg;
	u16 minor;
	int err;

	spin_lock_irq(&vram->state_lock);
	minor = le16_to_cpu(vram->hello.abi_minor);
	spin_unlock_irq(&vram->state_lock);
	if (minor < VRAM_ABI_MINOR_ADVISE)
		return -EOPNOTSUPP;
	msg = vram_message_alloc(VRAM_OP_ADVISE, 0);
	if (!msg)
		return -ENOMEM;
	vram_message_name_context(msg, context, 0);
	body = (void *)msg->request.body;
	body->address = cpu_to_le64(args->address);
	body->length = cpu_to_le64(args->length);
	body->advice = cpu_to_le32(args->advice);
	body->argument = cpu_to_le32(args->argument);
	err = vram_control(vram, msg);
	vram_message_put(msg);
	return err;
}

/**
 * vram_session_undo - undo what the device did for someone who is gone
 * @asked: a message that was abandoned and succeeded later
 *
 * A context or allocation nobody was told of would live as long as the session.
 *
 * Context: Process context.
 */
void vram_session_undo(struct vram_message *asked)
{
	struct vram_queue *queue = asked->queue;
	struct vram_context context = { .generation = asked->generation };
	struct vram_message *msg;

	switch (le16_to_cpu(asked->request.opcode)) {
	case VRAM_OP_CONTEXT_OPEN:
		context.number = asked->value;
		msg = vram_message_alloc(VRAM_OP_CONTEXT_CLOSE, 0);
		if (!msg)
			return;
		vram_context_close_message(msg, &context);
		break;
	case VRAM_OP_ALLOC:
		context.number = le32_to_cpu(asked->request.context);
		msg = vram_message_alloc(VRAM_OP_FREE, 0);
		if (!msg)
			return;
		vram_memory_free_message(msg, &context, asked->value);
		vram_queue_forget(msg);
		break;
	default:
		return;
	}
	vram_queue_submit(queue, msg);
	vram_message_put(msg);
}
