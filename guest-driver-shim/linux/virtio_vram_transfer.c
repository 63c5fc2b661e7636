// SPDX-License-Identifier: GPL-2.0-only
/*
 * virtio_vram: data requests.
 *
 * A call of any length becomes a row of requests on one stream and one queue,
 * of which at most VRAM_WINDOW are in flight; so it pins at most VRAM_WINDOW
 * times max_transfer bytes of user memory, and as much again as one request
 * has while that is being made.
 *
 * Pins are short-term, like those of direct I/O: user memory of every kind is
 * welcome, also shared file mappings, which FOLL_LONGTERM refuses. They do
 * last when the device does not answer; then only its reset ends them.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/build_bug.h>
#include <linux/hash.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "virtio_vram_priv.h"
#include "vram_ioctl.h"

#define VRAM_BODY_FITS(type) \
	static_assert(sizeof(type) == sizeof_field(struct virtio_vram_request, body))
VRAM_BODY_FITS(struct virtio_vram_range);
VRAM_BODY_FITS(struct virtio_vram_copy);
VRAM_BODY_FITS(struct virtio_vram_fill);
static_assert(VRAM_CHUNK_BYTES % 4 == 0);

/**
 * struct vram_job - what is left to do of a call
 * @vram: the device
 * @context: whose call it is
 * @queue: the queue of its stream
 * @stream: the stream
 * @opcode: of the requests
 * @address: device address: first, or destination
 * @source: device address, COPY only
 * @left: bytes no request has been made for
 * @pattern: FILL only
 * @width: FILL only
 * @user: user address of the next byte, WRITE and READ only
 * @pages: pinned pages, from that of @user on
 * @first_page: in @pages, those before belong to messages
 * @page_count: in @pages from @first_page on
 * @page_limit: size of @pages
 * @window: messages in flight, a ring
 * @oldest: in @window
 * @in_flight: in @window
 * @moved: bytes surely moved from the start
 * @error: the first error, in the order of bytes
 */
struct vram_job {
	struct vram_device *vram;
	const struct vram_context *context;
	struct vram_queue *queue;
	u32 stream;
	u16 opcode;
	u64 address;
	u64 source;
	u64 left;
	u32 pattern;
	u32 width;
	unsigned long user;
	struct page **pages;
	unsigned int first_page;
	unsigned int page_count;
	unsigned int page_limit;
	struct vram_message *window[VRAM_WINDOW];
	unsigned int oldest;
	unsigned int in_flight;
	u64 moved;
	int error;
};

/* The same stream of a context always goes to the same queue. */
static struct vram_queue *vram_queue_of_stream(struct vram_device *vram,
					       const struct vram_context *context,
					       u32 stream)
{
	u32 lane = hash_32(context->number, 16) + stream;

	return &vram->queues[VRAM_QUEUE_FIRST_REQUEST +
			     lane % vram->request_queues];
}

/**
 * vram_data_unpin - release the user memory of a message
 * @msg: the message, which the device does not have any more
 *
 * Context: Process context.
 */
void vram_data_unpin(struct vram_message *msg)
{
	struct scatterlist *sg;
	unsigned int i;

	for_each_sg(msg->data, sg, msg->data_segments, i)
		unpin_user_page_range_dirty_lock(sg_page(sg),
						 PFN_UP(sg->offset + sg->length),
						 msg->from_device);
	kfree(msg->data);
}

/* Pins the pages of what is left, as many as one request may take. */
static int vram_job_pin(struct vram_job *job)
{
	unsigned int flags = job->opcode == VRAM_OP_READ ? FOLL_WRITE : 0;
	u64 bytes = offset_in_page(job->user) + job->left;
	unsigned int count = min_t(u64, DIV_ROUND_UP_ULL(bytes, PAGE_SIZE),
				   job->page_limit);
	int pinned = pin_user_pages_fast(job->user & PAGE_MASK, count, flags,
					 job->pages);

	if (pinned == -EINTR || pinned == -ERESTARTSYS)
		return -EINTR;
	if (pinned <= 0)
		return pinned == -ENOMEM ? -ENOMEM : -EFAULT;
	job->first_page = 0;
	job->page_count = pinned;
	return 0;
}

static void vram_job_unpin(struct vram_job *job)
{
	unpin_user_pages(job->pages + job->first_page, job->page_count);
	job->page_count = 0;
}

/**
 * struct vram_run - segments being made of pinned pages
 * @segments: how many
 * @bytes: in all of them
 * @pages: in all of them
 * @last_bytes: in the last one
 * @last_pfn: its last page
 */
struct vram_run {
	unsigned int segments;
	size_t bytes;
	unsigned int pages;
	size_t last_bytes;
	unsigned long last_pfn;
};

/*
 * Adds the next pinned page of @job to @run, and to @sg if that is not NULL. A
 * page that follows the last one in memory makes the last segment longer.
 *
 * Return: Whether it could be added.
 */
static bool vram_run_add_page(const struct vram_job *job, struct vram_run *run,
			      struct scatterlist *sg)
{
	unsigned int offset = run->pages ? 0 : offset_in_page(job->user);
	struct page *page = job->pages[job->first_page + run->pages];
	unsigned long pfn = page_to_pfn(page);
	size_t part = min_t(u64, PAGE_SIZE - offset, job->left - run->bytes);

	if (run->segments && pfn == run->last_pfn + 1 &&
	    run->last_bytes + part <= job->vram->max_segment_bytes) {
		run->last_bytes += part;
		if (sg)
			sg[run->segments - 1].length = run->last_bytes;
	} else {
		if (run->segments == job->vram->max_segments)
			return false;
		if (sg)
			sg_set_page(&sg[run->segments], page, part, offset);
		run->segments++;
		run->last_bytes = part;
	}
	run->last_pfn = pfn;
	run->bytes += part;
	run->pages++;
	return true;
}

/*
 * Hands pinned pages to a message, as many as go into one request. Requests
 * meet at page boundaries, so a page belongs to one message only.
 */
static int vram_job_attach_pages(struct vram_job *job, struct vram_message *msg)
{
	struct vram_run run = {}, fill = {};
	struct scatterlist *sg;
	int err;

	if (!job->page_count) {
		err = vram_job_pin(job);
		if (err)
			return err;
	}
	while (run.pages < job->page_count && vram_run_add_page(job, &run, NULL))
		;
	sg = kmalloc_array(run.segments, sizeof(*sg), GFP_KERNEL);
	if (!sg)
		return -ENOMEM;
	sg_init_table(sg, run.segments);
	while (fill.pages < run.pages)
		vram_run_add_page(job, &fill, sg);

	msg->data = sg;
	msg->data_segments = run.segments;
	msg->from_device = job->opcode == VRAM_OP_READ;
	msg->length = run.bytes;
	job->first_page += run.pages;
	job->page_count -= run.pages;
	return 0;
}

/* Makes the request for the next bytes of a job. */
static struct vram_message *vram_job_next(struct vram_job *job)
{
	struct virtio_vram_range *range;
	struct virtio_vram_copy *copy;
	struct virtio_vram_fill *fill;
	struct vram_message *msg;
	int err;

	msg = vram_message_alloc(job->opcode, 0);
	if (!msg)
		return ERR_PTR(-ENOMEM);
	vram_message_name_context(msg, job->context, job->stream);

	switch (job->opcode) {
	case VRAM_OP_WRITE:
	case VRAM_OP_READ:
		err = vram_job_attach_pages(job, msg);
		if (err) {
			vram_message_put(msg);
			return ERR_PTR(err);
		}
		range = (void *)msg->request.body;
		range->address = cpu_to_le64(job->address);
		range->length = cpu_to_le64(msg->length);
		job->user += msg->length;
		break;
	case VRAM_OP_COPY:
		msg->length = min_t(u64, job->left, VRAM_CHUNK_BYTES);
		copy = (void *)msg->request.body;
		copy->destination = cpu_to_le64(job->address);
		copy->length = cpu_to_le64(msg->length);
		copy->source = cpu_to_le64(job->source);
		job->source += msg->length;
		break;
	case VRAM_OP_FILL:
		msg->length = min_t(u64, job->left, VRAM_CHUNK_BYTES);
		fill = (void *)msg->request.body;
		fill->address = cpu_to_le64(job->address);
		fill->length = cpu_to_le64(msg->length);
		fill->pattern = cpu_to_le32(job->pattern);
		fill->width = cpu_to_le32(job->width);
		break;
	}
	job->address += msg->length;
	job->left -= msg->length;
	return msg;
}

/* Makes and submits the next request. */
static int vram_job_push(struct vram_job *job)
{
	struct vram_message *msg;
	int err;

	if (fatal_signal_pending(current))
		return -EINTR;
	msg = vram_job_next(job);
	if (IS_ERR(msg))
		return PTR_ERR(msg);
	err = vram_queue_submit(job->queue, msg);
	if (err) {
		vram_message_put(msg);
		return err;
	}
	job->window[(job->oldest + job->in_flight) % VRAM_WINDOW] = msg;
	job->in_flight++;
	return 0;
}

/* Waits for the oldest request. */
static void vram_job_pop(struct vram_job *job)
{
	struct vram_message *msg = job->window[job->oldest];
	int err = vram_message_wait(msg);

	job->oldest = (job->oldest + 1) % VRAM_WINDOW;
	job->in_flight--;
	/* Only what follows without a gap counts as moved. */
	if (!job->error) {
		/* Others have written no count that we may read. */
		if (!err || err == -EIO || err == -ENODEV)
			job->moved += msg->moved;
		job->error = err;
	}
	vram_message_put(msg);
}

/*
 * Carries out a job. After an error no more requests are made, and those in
 * flight are waited for.
 *
 * Return: 0 or the first error.
 */
static int vram_job_run(struct vram_job *job)
{
	int err = 0;

	while (job->in_flight || (job->left && !err && !job->error)) {
		if (job->left && !err && !job->error &&
		    job->in_flight < VRAM_WINDOW)
			err = vram_job_push(job);
		else
			vram_job_pop(job);
	}
	/* What gave the device up says more than what that led to. */
	if (!job->error || err == -ETIMEDOUT)
		return err;
	return job->error;
}

static void vram_job_init(struct vram_job *job, struct vram_device *vram,
			  const struct vram_context *context, u16 opcode,
			  u32 stream)
{
	memset(job, 0, sizeof(*job));
	job->vram = vram;
	job->context = context;
	job->stream = stream;
	job->opcode = opcode;
	job->queue = vram_queue_of_stream(vram, context, stream);
}

static bool vram_range_wraps(u64 address, u64 length)
{
	u64 last;

	return check_add_overflow(address, length - 1, &last);
}

/**
 * vram_data_transfer - move bytes between user memory and device memory
 * @vram: the device
 * @context: who owns the device memory
 * @args: as user space gave them; @args->moved is set
 *
 * Context: Process context of the user.
 * Return: 0 or an error.
 */
int vram_data_transfer(struct vram_device *vram,
		       const struct vram_context *context,
		       struct vram_ioctl_transfer *args)
{
	struct vram_job job;
	u64 pages;
	int err;

	if (!args->length || args->stream >= VRAM_MAX_STREAMS ||
	    args->direction > VRAM_FROM_DEVICE)
		return -EINVAL;
	if (vram_range_wraps(args->device_address, args->length))
		return -ENXIO;
	if (vram_range_wraps(args->user_pointer, args->length) ||
	    args->user_pointer + (args->length - 1) > ULONG_MAX)
		return -EFAULT;

	vram_job_init(&job, vram, context,
		      args->direction == VRAM_TO_DEVICE ?
		      VRAM_OP_WRITE : VRAM_OP_READ, args->stream);
	job.address = args->device_address;
	job.user = args->user_pointer;
	job.left = args->length;
	pages = offset_in_page(job.user) / PAGE_SIZE +
		DIV_ROUND_UP_ULL(args->length, PAGE_SIZE) + 1;
	job.page_limit = min_t(u64, pages, vram->max_transfer / PAGE_SIZE);
	job.pages = kvmalloc_array(job.page_limit, sizeof(*job.pages),
				   GFP_KERNEL);
	if (!job.pages)
		return -ENOMEM;
	err = vram_job_run(&job);
	vram_job_unpin(&job);
	kvfree(job.pages);
	args->moved = job.moved;
	return err;
}

/**
 * vram_data_copy - copy within device memory
 * @vram: the device
 * @context: who owns the memory
 * @args: as user space gave them; @args->moved is set
 *
 * Context: Process context.
 * Return: 0 or an error.
 */
int vram_data_copy(struct vram_device *vram, const struct vram_context *context,
		   struct vram_ioctl_copy *args)
{
	u64 distance = args->destination > args->source ?
		args->destination - args->source :
		args->source - args->destination;
	struct vram_job job;
	int err;

	if (!args->length || args->stream >= VRAM_MAX_STREAMS)
		return -EINVAL;
	if (vram_range_wraps(args->destination, args->length) ||
	    vram_range_wraps(args->source, args->length))
		return -ENXIO;
	/* The device sees the overlap of chunks only. */
	if (distance < args->length)
		return -EINVAL;

	vram_job_init(&job, vram, context, VRAM_OP_COPY, args->stream);
	job.address = args->destination;
	job.source = args->source;
	job.left = args->length;
	err = vram_job_run(&job);
	args->moved = job.moved;
	return err;
}

/**
 * vram_data_fill - fill device memory with a pattern
 * @vram: the device
 * @context: who owns the memory
 * @args: as user space gave them; @args->moved is set
 *
 * Context: Process context.
 * Return: 0 or an error.
 */
int vram_data_fill(struct vram_device *vram, const struct vram_context *context,
		   struct vram_ioctl_fill *args)
{
	struct vram_job job;
	int err;

	if (!args->length || args->stream >= VRAM_MAX_STREAMS)
		return -EINVAL;
	if (args->width != 1 && args->width != 2 && args->width != 4)
		return -EINVAL;
	if ((args->address | args->length) & (args->width - 1))
		return -EINVAL;
	if (vram_range_wraps(args->address, args->length))
		return -ENXIO;

	vram_job_init(&job, vram, context, VRAM_OP_FILL, args->stream);
	job.address = args->address;
	job.left = args->length;
	job.pattern = args->pattern;
	job.width = args->width;
	err = vram_job_run(&job);
	args->moved = job.moved;
	return err;
}

/**
 * vram_data_fence - wait for what others asked for before
 * @vram: the device
 * @context: whose requests
 * @args: as user space gave them
 *
 * Context: Process context.
 * Return: 0 or an error.
 */
int vram_data_fence(struct vram_device *vram,
		    const struct vram_context *context,
		    const struct vram_ioctl_fence *args)
{
	struct vram_message *msg;
	int err;

	if (args->stream >= VRAM_MAX_STREAMS ||
	    args->flags & ~VRAM_IOCTL_FENCE_ALL)
		return -EINVAL;
	msg = vram_message_alloc(VRAM_OP_FENCE, 0);
	if (!msg)
		return -ENOMEM;
	vram_message_name_context(msg, context, args->stream);
	if (args->flags & VRAM_IOCTL_FENCE_ALL)
		msg->request.flags = cpu_to_le16(VRAM_FENCE_ALL_STREAMS);
	msg->any_progress = true;
	err = vram_message_send(vram_queue_of_stream(vram, context, args->stream),
				msg);
	vram_message_put(msg);
	return err;
}
