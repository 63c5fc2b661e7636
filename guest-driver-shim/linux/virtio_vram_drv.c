// SPDX-License-Identifier: GPL-2.0-only
/*
 * virtio_vram: driver of the virtio-vram device, which gives a guest memory of
 * the host's GPUs. docs/protocol.md of the project is the contract.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpumask.h>
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/virtio_config.h>

#include "virtio_vram_priv.h"

struct workqueue_struct *vram_workqueue;
static DEFINE_IDA(vram_ids);

/* Zero is none. */
static u64 vram_draw_epoch(void)
{
	u64 epoch;

	do {
		epoch = get_random_u64();
	} while (!epoch);
	return epoch;
}

/**
 * vram_device_set_state - change the state of a device
 * @vram: the device
 * @from: states in which it may be changed, one bit each
 * @to: the new state
 *
 * Context: Any.
 * Return: Whether it was changed.
 */
bool vram_device_set_state(struct vram_device *vram, unsigned long from,
			   enum vram_state to)
{
	unsigned long flags;
	bool changed;

	spin_lock_irqsave(&vram->state_lock, flags);
	changed = from & BIT(vram->state);
	if (changed)
		WRITE_ONCE(vram->state, to);
	spin_unlock_irqrestore(&vram->state_lock, flags);
	wake_up_all(&vram->state_wait);
	return changed;
}

/**
 * vram_device_break - give a device up
 * @vram: the device
 * @why: for the log
 *
 * All waits end. What the device has, it keeps until it is reset: when the
 * driver is unbound, or when the system goes to sleep.
 *
 * Context: Any, without &vram_queue.lock.
 */
void vram_device_break(struct vram_device *vram, const char *why)
{
	if (vram_device_set_state(vram, BIT(VRAM_STARTING) | BIT(VRAM_READY) |
				  BIT(VRAM_STALE), VRAM_BROKEN))
		vram_err(vram, "device given up: %s; unbind and bind the driver once it works again\n",
			 why);
	vram_rings_fail(vram, -ENODEV);
}

/**
 * vram_device_lose_session - the daemon has forgotten the session
 * @vram: the device
 *
 * Calls of files that have a context fail from now on. The new session gets a
 * new driver epoch: should the device still have the old one, it closes the
 * contexts that nobody uses any more.
 *
 * Context: Any.
 */
void vram_device_lose_session(struct vram_device *vram)
{
	unsigned long flags;

	spin_lock_irqsave(&vram->state_lock, flags);
	if (vram->state == VRAM_READY) {
		WRITE_ONCE(vram->state, VRAM_STALE);
		WRITE_ONCE(vram->generation, vram->generation + 1 ?: 1);
		vram->driver_epoch = vram_draw_epoch();
		queue_work(vram_workqueue, &vram->restart_work);
	}
	spin_unlock_irqrestore(&vram->state_lock, flags);
}

/**
 * vram_device_wait_ready - wait while a device is being restarted
 * @vram: the device
 *
 * Context: Process context.
 * Return: 0, -ENODEV, -EINTR, -ETIMEDOUT.
 */
int vram_device_wait_ready(struct vram_device *vram)
{
	long ret;

	ret = wait_event_killable_timeout(vram->state_wait,
					  READ_ONCE(vram->state) != VRAM_STARTING &&
					  READ_ONCE(vram->state) != VRAM_STALE,
					  2 * vram_timeout());
	if (ret < 0)
		return -EINTR;
	if (!ret)
		return -ETIMEDOUT;
	return READ_ONCE(vram->state) == VRAM_READY ? 0 : -ENODEV;
}

/* What the virtio core does before probe() and restore(). */
static int vram_negotiate_again(struct virtio_device *vdev)
{
	int err;

	virtio_add_status(vdev, VIRTIO_CONFIG_S_ACKNOWLEDGE);
	virtio_add_status(vdev, VIRTIO_CONFIG_S_DRIVER);
	err = vdev->config->finalize_features(vdev);
	if (err)
		return err;
	virtio_add_status(vdev, VIRTIO_CONFIG_S_FEATURES_OK);
	if (!(vdev->config->get_status(vdev) & VIRTIO_CONFIG_S_FEATURES_OK))
		return -ENODEV;
	return 0;
}

/*
 * The daemon was started anew, or lost its connection. The rings are started
 * anew as well: requests may have been lost, and none that names a context of
 * the old session may reach the new one, where the number can be someone
 * else's.
 */
static void vram_restart_work(struct work_struct *work)
{
	struct vram_device *vram =
		container_of(work, struct vram_device, restart_work);
	int err;

	if (READ_ONCE(vram->state) != VRAM_STALE)
		return;
	vram_info(vram, "the session was lost, the memory of open files is gone\n");
	vram_rings_fail(vram, -ESTALE);
	vram_rings_stop(vram, -ESTALE);
	err = vram_negotiate_again(vram->vdev);
	if (!err)
		err = vram_rings_start(vram);
	if (!err)
		err = vram_session_hello(vram);
	if (err)
		vram_device_break(vram, "no new session");
}

/**
 * vram_device_release - free a device
 * @refs: &vram_device.refs
 */
void vram_device_release(struct kref *refs)
{
	struct vram_device *vram = container_of(refs, struct vram_device, refs);

	cleanup_srcu_struct(&vram->rings);
	kfree(vram->events);
	kvfree(vram);
}

static struct vram_device *vram_device_alloc(struct virtio_device *vdev,
					     unsigned int queue_limit)
{
	struct vram_device *vram;
	unsigned int i;

	vram = kvzalloc(struct_size(vram, queues, queue_limit), GFP_KERNEL);
	if (!vram)
		return NULL;
	vram->event_count = VRAM_EVENTS;
	vram->events = kcalloc(vram->event_count, sizeof(*vram->events),
			       GFP_KERNEL);
	if (!vram->events || init_srcu_struct(&vram->rings)) {
		kfree(vram->events);
		kvfree(vram);
		return NULL;
	}
	kref_init(&vram->refs);
	vram->vdev = vdev;
	spin_lock_init(&vram->state_lock);
	init_waitqueue_head(&vram->state_wait);
	vram_events_init(vram);
	vram->state = VRAM_STARTING;
	vram->generation = 1;
	vram->driver_epoch = vram_draw_epoch();
	vram->progress = jiffies;
	vram->nudged = jiffies;
	INIT_WORK(&vram->restart_work, vram_restart_work);
	INIT_WORK(&vram->deferred_work, vram_deferred_work);
	init_llist_head(&vram->deferred);
	vram->queue_limit = queue_limit;
	for (i = 0; i < queue_limit; i++) {
		struct vram_queue *queue = &vram->queues[i];

		queue->vram = vram;
		spin_lock_init(&queue->lock);
		INIT_LIST_HEAD(&queue->pending);
		init_waitqueue_head(&queue->room);
		if (i == VRAM_QUEUE_CONTROL)
			strscpy(queue->name, "control", sizeof(queue->name));
		else if (i == VRAM_QUEUE_EVENT)
			strscpy(queue->name, "event", sizeof(queue->name));
		else
			snprintf(queue->name, sizeof(queue->name), "request.%u",
				 i - VRAM_QUEUE_FIRST_REQUEST);
	}
	return vram;
}

static int vram_probe(struct virtio_device *vdev)
{
	struct vram_device *vram;
	u16 abi_major, queues;
	u32 magic, segments;
	u64 transfer;
	int err;

	if (!vdev->config->get || !virtio_has_feature(vdev, VIRTIO_F_VERSION_1))
		return -ENODEV;
	virtio_cread_le(vdev, struct virtio_vram_config, magic, &magic);
	virtio_cread_le(vdev, struct virtio_vram_config, abi_major, &abi_major);
	if (magic != VRAM_CONFIG_MAGIC || abi_major != VRAM_ABI_MAJOR)
		return -ENODEV;
	virtio_cread_le(vdev, struct virtio_vram_config, request_queues, &queues);
	virtio_cread_le(vdev, struct virtio_vram_config, max_segments, &segments);
	virtio_cread_le(vdev, struct virtio_vram_config, max_transfer_bytes,
			&transfer);
	if (!queues || !segments || transfer < PAGE_SIZE) {
		dev_err(&vdev->dev, "unusable configuration: %u queues, %u segments, %llu bytes\n",
			queues, segments, transfer);
		return -EINVAL;
	}

	vram = vram_device_alloc(vdev, VRAM_QUEUE_FIRST_REQUEST +
				 min_t(unsigned int, queues, num_online_cpus()));
	if (!vram)
		return -ENOMEM;
	vram->config_segments = segments;
	vram->config_transfer = transfer;
	vdev->priv = vram;

	vram->id = ida_alloc(&vram_ids, GFP_KERNEL);
	if (vram->id < 0) {
		err = vram->id;
		goto put;
	}
	snprintf(vram->name, sizeof(vram->name), "vram%d", vram->id);
	err = vram_rings_start(vram);
	if (err)
		goto free_id;
	err = vram_session_hello(vram);
	if (err) {
		dev_err(&vdev->dev, "no session: error %d\n", err);
		goto stop;
	}
	err = vram_chardev_add(vram);
	if (err)
		goto stop;
	dev_info(&vdev->dev, "%s: %u request queues, %u interrupt vectors, %u segments\n",
		 vram->name, vram->request_queues, vram->interrupt_vectors,
		 vram->max_segments);
	return 0;

stop:
	vram_device_set_state(vram, ~0UL, VRAM_GONE);
	cancel_work_sync(&vram->restart_work);
	vram_rings_stop(vram, -ENODEV);
free_id:
	ida_free(&vram_ids, vram->id);
put:
	vdev->priv = NULL;
	kref_put(&vram->refs, vram_device_release);
	return err;
}

/* Ends all use of the rings, in the state @to. */
static void vram_quiesce(struct vram_device *vram, enum vram_state to)
{
	vram_device_set_state(vram, ~0UL, to);
	vram_rings_fail(vram, -ENODEV);
	cancel_work_sync(&vram->restart_work);
	vram_rings_stop(vram, -ENODEV);
}

static void vram_remove(struct virtio_device *vdev)
{
	struct vram_device *vram = vdev->priv;

	vram_chardev_remove(vram);
	vram_quiesce(vram, VRAM_GONE);
	ida_free(&vram_ids, vram->id);
	vdev->priv = NULL;
	kref_put(&vram->refs, vram_device_release);
}

#ifdef CONFIG_PM_SLEEP
static int vram_freeze(struct virtio_device *vdev)
{
	vram_quiesce(vdev->priv, VRAM_FROZEN);
	return 0;
}

/* The same driver epoch resumes the session: contexts and memory are kept. */
static int vram_restore(struct virtio_device *vdev)
{
	struct vram_device *vram = vdev->priv;
	int err;

	vram_device_set_state(vram, BIT(VRAM_FROZEN), VRAM_STARTING);
	err = vram_rings_start(vram);
	if (!err)
		err = vram_session_hello(vram);
	if (err)
		vram_device_break(vram, "no session after sleep");
	return err;
}
#endif

static const struct virtio_device_id vram_id_table[] = {
	{ VRAM_VIRTIO_ID_DEFAULT, VIRTIO_DEV_ANY_ID },
	{ VRAM_VIRTIO_ID_ALTERNATE, VIRTIO_DEV_ANY_ID },
	{ 0 },
};
MODULE_DEVICE_TABLE(virtio, vram_id_table);

static struct virtio_driver vram_driver = {
	.driver.name = KBUILD_MODNAME,
	.driver.owner = THIS_MODULE,
	.id_table = vram_id_table,
	.probe = vram_probe,
	.remove = vram_remove,
#ifdef CONFIG_PM_SLEEP
	.freeze = vram_freeze,
	.restore = vram_restore,
#endif
};

static int __init vram_init(void)
{
	int err;

	err = vram_messages_init();
	if (err)
		return err;
	vram_workqueue = alloc_workqueue(KBUILD_MODNAME, WQ_UNBOUND, 0);
	if (!vram_workqueue) {
		err = -ENOMEM;
		goto exit_messages;
	}
	err = register_virtio_driver(&vram_driver);
	if (err)
		goto destroy_workqueue;
	return 0;

destroy_workqueue:
	destroy_workqueue(vram_workqueue);
exit_messages:
	vram_messages_exit();
	return err;
}
module_init(vram_init);

static void __exit vram_exit(void)
{
	unregister_virtio_driver(&vram_driver);
	destroy_workqueue(vram_workqueue);
	vram_messages_exit();
}
module_exit(vram_exit);

MODULE_DESCRIPTION("Driver of the virtio-vram device");
MODULE_LICENSE("GPL");
