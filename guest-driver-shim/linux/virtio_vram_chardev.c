// SPDX-License-Identifier: GPL-2.0-only
/*
 * virtio_vram: /dev/vramN.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/compat.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "virtio_vram_priv.h"
#include "vram_ioctl.h"

/**
 * struct vram_file - one open file
 * @vram: the device, referenced
 * @lock: serializes the opening of the context
 * @context: opened when first needed; its number is written last and read with
 *	smp_load_acquire()
 * @events: how far events were read
 * @close: the message that will close the context, made beforehand because a
 *	close must not fail
 * @close_work: sends it when vram_release() may not wait
 */
struct vram_file {
	struct vram_device *vram;
	struct mutex lock;	/* opening of @context */
	struct vram_context context;
	struct vram_event_cursor events;
	struct vram_message *close;
	struct work_struct close_work;
};

static void vram_file_free(struct vram_file *file)
{
	if (file->close)
		vram_message_put(file->close);
	kref_put(&file->vram->refs, vram_device_release);
	kfree(file);
}

static void vram_file_close_work(struct work_struct *work)
{
	struct vram_file *file = container_of(work, struct vram_file, close_work);

	vram_queue_submit(&file->vram->queues[VRAM_QUEUE_CONTROL], file->close);
	vram_file_free(file);
}

/* The device is there as long as its node is; misc_open() sees to that. */
static int vram_open(struct inode *inode, struct file *filp)
{
	struct vram_device *vram = container_of(filp->private_data,
						struct vram_device, misc);
	struct vram_file *file;

	file = kzalloc(sizeof(*file), GFP_KERNEL);
	if (!file)
		return -ENOMEM;
	mutex_init(&file->lock);
	kref_get(&vram->refs);
	file->vram = vram;
	vram_events_follow(vram, &file->events);
	filp->private_data = file;
	return nonseekable_open(inode, filp);
}

/*
 * The message is in the ring when this returns, so what the caller or others
 * ask for next finds the memory free; nobody has to wait for the answer. Only
 * for one who is being killed while the ring is full a worker waits for room.
 */
static int vram_release(struct inode *inode, struct file *filp)
{
	struct vram_file *file = filp->private_data;
	struct vram_device *vram = file->vram;

	if (file->context.number) {
		vram_context_close_message(file->close, &file->context);
		if (vram_queue_submit(&vram->queues[VRAM_QUEUE_CONTROL],
				      file->close) == -EINTR) {
			INIT_WORK(&file->close_work, vram_file_close_work);
			queue_work(vram_workqueue, &file->close_work);
			return 0;
		}
	}
	vram_file_free(file);
	return 0;
}

static int vram_file_open_context(struct vram_file *file)
{
	int err, attempt;

	if (mutex_lock_killable(&file->lock))
		return -EINTR;
	err = 0;
	if (file->context.number)
		goto unlock;
	if (!file->close) {
		file->close = vram_message_alloc(VRAM_OP_CONTEXT_CLOSE, 0);
		if (!file->close) {
			err = -ENOMEM;
			goto unlock;
		}
	}
	/* Nothing of this file is lost if the daemon is started anew now. */
	for (attempt = 0; attempt < 3; attempt++) {
		err = vram_device_wait_ready(file->vram);
		if (err)
			break;
		err = vram_context_open(file->vram, &file->context);
		if (err != -ESTALE)
			break;
	}
unlock:
	mutex_unlock(&file->lock);
	return err;
}

/* Whether calls can succeed, as far as the device and a context tell. */
static int vram_file_good(struct vram_file *file, bool has_context)
{
	switch (READ_ONCE(file->vram->state)) {
	case VRAM_FROZEN:
	case VRAM_BROKEN:
	case VRAM_GONE:
		return -ENODEV;
	default:
		break;
	}
	if (has_context &&
	    file->context.generation != READ_ONCE(file->vram->generation))
		return -ESTALE;
	return 0;
}

/* Makes sure that the file has a context and that it is still good. */
static int vram_file_context(struct vram_file *file)
{
	int err;

	/* Pairs with vram_context_open(): then the generation is there too. */
	if (!smp_load_acquire(&file->context.number)) {
		err = vram_file_open_context(file);
		if (err)
			return err;
	}
	return vram_file_good(file, true);
}

/* Needs no context, but a file that lost its memory is told. */
static int vram_file_hears(struct vram_file *file)
{
	/* Pairs with vram_context_open(). */
	return vram_file_good(file, smp_load_acquire(&file->context.number));
}

static int vram_ioctl_do_version(struct vram_file *file, void __user *user)
{
	struct vram_device *vram = file->vram;
	struct vram_ioctl_version args;
	int err = vram_device_wait_ready(vram);

	if (err)
		return err;
	memset(&args, 0, sizeof(args));
	spin_lock_irq(&vram->state_lock);
	args.ioctl_version = VRAM_IOCTL_VERSION_NUMBER;
	args.abi_major = le16_to_cpu(vram->hello.abi_major);
	args.abi_minor = le16_to_cpu(vram->hello.abi_minor);
	args.boot_epoch = vram->boot_epoch;
	args.band_base = le64_to_cpu(vram->hello.band_base);
	args.band_length = le64_to_cpu(vram->hello.band_length);
	args.max_transfer_bytes = vram->max_transfer;
	args.request_queues = vram->request_queues;
	args.interrupt_vectors = vram->interrupt_vectors;
	spin_unlock_irq(&vram->state_lock);
	return copy_to_user(user, &args, sizeof(args)) ? -EFAULT : 0;
}

static int vram_copy_gpus_to_user(struct vram_ioctl_gpu __user *user,
				  const struct virtio_vram_gpu_entry *entries,
				  u32 count)
{
	struct vram_ioctl_gpu gpu;
	u32 i;

	for (i = 0; i < count; i++) {
		memset(&gpu, 0, sizeof(gpu));
		gpu.index = le32_to_cpu(entries[i].index);
		if (entries[i].flags & cpu_to_le32(VRAM_GPU_HOME))
			gpu.flags |= VRAM_IOCTL_GPU_HOME;
		gpu.slice_bytes = le64_to_cpu(entries[i].slice_bytes);
		gpu.total_bytes = le64_to_cpu(entries[i].total_bytes);
		memcpy(gpu.name, entries[i].name, sizeof(gpu.name));
		if (copy_to_user(&user[i], &gpu, sizeof(gpu)))
			return -EFAULT;
	}
	return 0;
}

static int vram_ioctl_do_info(struct vram_file *file, void __user *user)
{
	const struct virtio_vram_info_reply *reply;
	struct vram_ioctl_info args;
	struct vram_message *msg;
	int err;

	if (copy_from_user(&args, user, sizeof(args)))
		return -EFAULT;
	if (args.reserved0 || args.reserved[0] || args.reserved[1])
		return -EINVAL;
	/*
	 * Needs no context, but a file that lost its memory is told; pairs with
	 * vram_context_open().
	 */
	err = smp_load_acquire(&file->context.number) ?
		vram_file_context(file) : vram_device_wait_ready(file->vram);
	if (err)
		return err;
	err = vram_session_info(file->vram, &msg);
	if (err)
		return err;
	reply = msg->reply;
	args.limit_bytes = le64_to_cpu(reply->limit_bytes);
	args.guarantee_bytes = le64_to_cpu(reply->guarantee_bytes);
	args.allocated_bytes = le64_to_cpu(reply->allocated_bytes);
	args.backed_bytes = le64_to_cpu(reply->backed_bytes);
	args.shard_bytes = le64_to_cpu(reply->shard_bytes);
	args.allocations = le32_to_cpu(reply->allocations);
	args.contexts = le32_to_cpu(reply->contexts);
	args.flags = reply->flags & cpu_to_le32(VRAM_DEVICE_SIMULATED) ?
		VRAM_INFO_SIMULATED : 0;
	args.gpu_count = le32_to_cpu(reply->gpu_count);
	memcpy(args.slice_name, reply->slice_name, sizeof(args.slice_name));
	err = vram_copy_gpus_to_user(u64_to_user_ptr(args.gpus),
				     (const void *)(reply + 1),
				     min(args.gpu_count, args.gpu_capacity));
	vram_message_put(msg);
	if (!err && copy_to_user(user, &args, sizeof(args)))
		err = -EFAULT;
	return err;
}

static int vram_ioctl_do_alloc(struct vram_file *file, void __user *user)
{
	struct vram_ioctl_alloc args;
	int err;

	if (copy_from_user(&args, user, sizeof(args)))
		return -EFAULT;
	if (args.reserved || !args.length)
		return -EINVAL;
	err = vram_file_context(file);
	if (err)
		return err;
	err = vram_memory_alloc(file->vram, &file->context, args.length,
				args.alignment, &args.address);
	if (err)
		return err;
	if (copy_to_user(user, &args, sizeof(args))) {
		vram_memory_free(file->vram, &file->context, args.address);
		return -EFAULT;
	}
	return 0;
}

static int vram_ioctl_do_free(struct vram_file *file, void __user *user)
{
	struct vram_ioctl_free args;
	int err;

	if (copy_from_user(&args, user, sizeof(args)))
		return -EFAULT;
	if (args.reserved)
		return -EINVAL;
	err = vram_file_context(file);
	if (err)
		return err;
	return vram_memory_free(file->vram, &file->context, args.address);
}

static int vram_copy_extents_to_user(struct vram_ioctl_extent __user *user,
				     const struct virtio_vram_extent *extents,
				     u32 count)
{
	struct vram_ioctl_extent extent;
	u32 i;

	for (i = 0; i < count; i++) {
		memset(&extent, 0, sizeof(extent));
		extent.address = le64_to_cpu(extents[i].address);
		extent.length = le64_to_cpu(extents[i].length);
		extent.gpu = le32_to_cpu(extents[i].gpu);
		extent.tier = le32_to_cpu(extents[i].tier);
		if (copy_to_user(&user[i], &extent, sizeof(extent)))
			return -EFAULT;
	}
	return 0;
}

static int vram_ioctl_do_query(struct vram_file *file, void __user *user)
{
	const struct virtio_vram_query_reply *reply;
	struct vram_ioctl_query args;
	struct vram_message *msg;
	int err;

	if (copy_from_user(&args, user, sizeof(args)))
		return -EFAULT;
	if (args.reserved)
		return -EINVAL;
	err = vram_file_context(file);
	if (err)
		return err;
	err = vram_memory_query(file->vram, &file->context, args.address,
				args.first_extent,
				min(args.extent_capacity, VRAM_EXTENTS_MAX), &msg);
	if (err)
		return err;
	reply = msg->reply;
	args.base = le64_to_cpu(reply->base);
	args.length = le64_to_cpu(reply->length);
	args.extent_count = le32_to_cpu(reply->extent_count);
	args.extent_total = le32_to_cpu(reply->extent_total);
	err = vram_copy_extents_to_user(u64_to_user_ptr(args.extents),
					(const void *)(reply + 1),
					args.extent_count);
	vram_message_put(msg);
	if (!err && copy_to_user(user, &args, sizeof(args)))
		err = -EFAULT;
	return err;
}

static int vram_ioctl_do_advise(struct vram_file *file, void __user *user)
{
	struct vram_ioctl_advise args;
	int err;

	if (copy_from_user(&args, user, sizeof(args)))
		return -EFAULT;
	if (args.reserved)
		return -EINVAL;
	err = vram_file_context(file);
	if (err)
		return err;
	return vram_memory_advise(file->vram, &file->context, &args);
}

static int vram_ioctl_do_transfer(struct vram_file *file, void __user *user)
{
	struct vram_ioctl_transfer __user *to = user;
	struct vram_ioctl_transfer args;
	int err;

	if (copy_from_user(&args, user, sizeof(args)))
		return -EFAULT;
	args.moved = 0;
	err = args.reserved ? -EINVAL : vram_file_context(file);
	if (!err)
		err = vram_data_transfer(file->vram, &file->context, &args);
	if (put_user(args.moved, &to->moved))
		return -EFAULT;
	return err;
}

static int vram_ioctl_do_copy(struct vram_file *file, void __user *user)
{
	struct vram_ioctl_copy __user *to = user;
	struct vram_ioctl_copy args;
	int err;

	if (copy_from_user(&args, user, sizeof(args)))
		return -EFAULT;
	args.moved = 0;
	err = args.reserved || args.reserved0 ? -EINVAL :
		vram_file_context(file);
	if (!err)
		err = vram_data_copy(file->vram, &file->context, &args);
	if (put_user(args.moved, &to->moved))
		return -EFAULT;
	return err;
}

static int vram_ioctl_do_fill(struct vram_file *file, void __user *user)
{
	struct vram_ioctl_fill __user *to = user;
	struct vram_ioctl_fill args;
	int err;

	if (copy_from_user(&args, user, sizeof(args)))
		return -EFAULT;
	args.moved = 0;
	err = args.reserved || args.reserved0 ? -EINVAL :
		vram_file_context(file);
	if (!err)
		err = vram_data_fill(file->vram, &file->context, &args);
	if (put_user(args.moved, &to->moved))
		return -EFAULT;
	return err;
}

static int vram_ioctl_do_fence(struct vram_file *file, void __user *user)
{
	struct vram_ioctl_fence args;
	int err;

	if (copy_from_user(&args, user, sizeof(args)))
		return -EFAULT;
	if (args.reserved)
		return -EINVAL;
	err = vram_file_context(file);
	if (err)
		return err;
	return vram_data_fence(file->vram, &file->context, &args);
}

static int vram_ioctl_do_event(struct vram_file *file, void __user *user)
{
	struct virtio_vram_event event;
	struct vram_ioctl_event args;
	int err;

	err = vram_file_hears(file);
	if (err)
		return err;
	if (!vram_events_read(file->vram, &file->events, &event))
		return -EAGAIN;
	memset(&args, 0, sizeof(args));
	args.kind = le32_to_cpu(event.kind);
	args.value = le64_to_cpu(event.value);
	args.extra = le64_to_cpu(event.extra);
	args.boot_epoch = le64_to_cpu(event.epoch);
	return copy_to_user(user, &args, sizeof(args)) ? -EFAULT : 0;
}

static __poll_t vram_poll(struct file *filp, struct poll_table_struct *wait)
{
	struct vram_file *file = filp->private_data;
	__poll_t ready = 0;

	poll_wait(filp, &file->vram->event_log.wait, wait);
	poll_wait(filp, &file->vram->state_wait, wait);
	if (vram_events_waiting(file->vram, &file->events))
		ready |= EPOLLIN | EPOLLRDNORM;
	if (vram_file_hears(file))
		ready |= EPOLLERR;
	return ready;
}

static long vram_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	struct vram_file *file = filp->private_data;
	void __user *user = (void __user *)arg;

	switch (cmd) {
	case VRAM_IOCTL_VERSION:
		return vram_ioctl_do_version(file, user);
	case VRAM_IOCTL_INFO:
		return vram_ioctl_do_info(file, user);
	case VRAM_IOCTL_ALLOC:
		return vram_ioctl_do_alloc(file, user);
	case VRAM_IOCTL_FREE:
		return vram_ioctl_do_free(file, user);
	case VRAM_IOCTL_QUERY:
		return vram_ioctl_do_query(file, user);
	case VRAM_IOCTL_ADVISE:
		return vram_ioctl_do_advise(file, user);
	case VRAM_IOCTL_TRANSFER:
		return vram_ioctl_do_transfer(file, user);
	case VRAM_IOCTL_COPY:
		return vram_ioctl_do_copy(file, user);
	case VRAM_IOCTL_FILL:
		return vram_ioctl_do_fill(file, user);
	case VRAM_IOCTL_FENCE:
		return vram_ioctl_do_fence(file, user);
	case VRAM_IOCTL_EVENT:
		return vram_ioctl_do_event(file, user);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations vram_fops = {
	.owner = THIS_MODULE,
	.open = vram_open,
	.release = vram_release,
	.poll = vram_poll,
	.unlocked_ioctl = vram_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

/**
 * vram_chardev_add - make the device's node appear
 * @vram: the device, READY
 *
 * Context: Process context.
 * Return: 0 or an error.
 */
int vram_chardev_add(struct vram_device *vram)
{
	vram->misc.minor = MISC_DYNAMIC_MINOR;
	vram->misc.name = vram->name;
	vram->misc.fops = &vram_fops;
	vram->misc.parent = &vram->vdev->dev;
	vram->misc.mode = 0660;
	return misc_register(&vram->misc);
}

/**
 * vram_chardev_remove - make it disappear
 * @vram: the device
 *
 * Files that are open stay so.
 *
 * Context: Process context.
 */
void vram_chardev_remove(struct vram_device *vram)
{
	misc_deregister(&vram->misc);
}
