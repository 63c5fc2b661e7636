/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * virtio_vram: what its files share.
 *
 * virtio_vram_drv.c       the life of a device: probe, remove, freeze, restart
 * virtio_vram_rings.c     finding the queues, starting and stopping the device
 * virtio_vram_queue.c     messages, waiting, what happens when the device does
 *                         not answer
 * virtio_vram_session.c   control requests: HELLO, contexts, memory, queries
 * virtio_vram_events.c    what the device tells without being asked
 * virtio_vram_transfer.c  data requests: pinning, splitting, pipelining
 * virtio_vram_chardev.c   /dev/vramN
 *
 * Locks, outer first: vram_file.lock, vram_queue.lock, vram_device.state_lock,
 * vram_event_log.lock.
 * SRCU vram_device.rings covers every use of a virtqueue outside of its
 * callback; it is never held while waiting for the device.
 */
#ifndef _VIRTIO_VRAM_PRIV_H
#define _VIRTIO_VRAM_PRIV_H

#include <linux/completion.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/llist.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/refcount.h>
#include <linux/scatterlist.h>
#include <linux/spinlock.h>
#include <linux/srcu.h>
#include <linux/types.h>
#include <linux/virtio.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "virtio_vram.h"

/* Requests of one call that may be in flight. */
#define VRAM_WINDOW		8
/* Bytes one COPY or FILL request covers: large, but short of any timeout. */
#define VRAM_CHUNK_BYTES	SZ_256M
/* Most bytes we put into one WRITE or READ, whatever the device allows. */
#define VRAM_TRANSFER_MAX	SZ_16M
/* A request is given up after this many timeouts although others progress. */
#define VRAM_TIMEOUT_CAP	12
/* Most entries and extents asked for at once: replies of 32 KiB at most. */
#define VRAM_GPUS_MAX		510
#define VRAM_EXTENTS_MAX	1023
#define VRAM_EVENTS		16
/* Events open files can be behind, a power of two. */
#define VRAM_EVENT_LOG		64

/**
 * enum vram_state - what may be done with a device
 * @VRAM_STARTING: HELLO and nothing else
 * @VRAM_READY: everything
 * @VRAM_STALE: the daemon forgot the session; the rings are to be restarted
 * @VRAM_FROZEN: the system sleeps
 * @VRAM_BROKEN: the device did not answer, or answered nonsense
 * @VRAM_GONE: removed
 */
enum vram_state {
	VRAM_STARTING,
	VRAM_READY,
	VRAM_STALE,
	VRAM_FROZEN,
	VRAM_BROKEN,
	VRAM_GONE,
};

/**
 * struct vram_queue - a virtqueue and the messages it has
 * @vram: the device
 * @vq: valid while the device's rings are; see vram_rings_start()
 * @lock: protects the ring and all below but @room
 * @pending: messages the device has
 * @room: those waiting for a free descriptor
 * @reaped: counts what came back, wraps
 * @progress: jiffies when the last awaited answer came
 * @name: as the transport shows it in /proc/interrupts
 */
struct vram_queue {
	struct vram_device *vram;
	struct virtqueue *vq;
	spinlock_t lock;	/* the ring and what follows */
	struct list_head pending;
	wait_queue_head_t room;
	unsigned int reaped;
	unsigned long progress;
	char name[16];
} ____cacheline_aligned_in_smp;

/**
 * struct vram_message - one request and its answer
 * @request: device-readable
 * @response: device-writable
 * @list: in &vram_queue.pending
 * @refs: one owner is who waits, the other the device. The device gives its
 *	reference back in the callback, or when it has been reset; a late answer
 *	therefore finds memory that is still there, and pinned
 * @queue: where it was submitted
 * @done: completed once, when @finished becomes true
 * @error: the outcome, once @finished
 * @status: as in the response
 * @moved: bytes surely moved, or bytes of @reply
 * @value: as in the response
 * @finished: whoever waits may go on, protected by &vram_queue.lock
 * @abandoned: nobody waits, protected by &vram_queue.lock
 * @any_progress: may have to wait for other queues, see vram_quiet_since()
 * @from_device: @data is written by the device
 * @generation: session of the context it names; 0 for none
 * @length: bytes a data request is to move
 * @reply: device-writable, behind the response
 * @reply_bytes: size of @reply
 * @data: pinned user memory
 * @data_segments: entries in @data
 * @deferred: in &vram_device.deferred
 */
struct vram_message {
	struct virtio_vram_request request;
	struct virtio_vram_response response ____cacheline_aligned;
	struct list_head list ____cacheline_aligned;
	refcount_t refs;
	struct vram_queue *queue;
	struct completion done;
	int error;
	u32 status;
	u64 moved;
	u64 value;
	bool finished;
	bool abandoned;
	bool any_progress;
	bool from_device;
	u32 generation;
	u64 length;
	void *reply;
	size_t reply_bytes;
	struct scatterlist *data;
	unsigned int data_segments;
	struct llist_node deferred;
};

/**
 * struct vram_event_log - the last events, for open files to read
 * @lock: protects all below, and &vram_event_cursor.next
 * @next: number of the event that comes next; they never wrap
 * @events: that of number n is at n % %VRAM_EVENT_LOG
 * @wait: woken when there is another
 */
struct vram_event_log {
	spinlock_t lock;	/* what follows */
	u64 next;
	struct virtio_vram_event events[VRAM_EVENT_LOG];
	wait_queue_head_t wait;
};

/**
 * struct vram_event_cursor - how far an open file has read
 * @next: number of the event it reads next
 */
struct vram_event_cursor {
	u64 next;
};

/**
 * struct vram_device - one virtio-vram device
 * @refs: the driver's, and one for each open file
 * @vdev: valid until remove() returns
 * @misc: /dev/vramN
 * @id: the N
 * @name: "vramN"
 * @state_lock: protects the fields up to @hello
 * @state: may be read without the lock
 * @generation: session number, changes when the guest's memory was lost; may be
 *	read without the lock
 * @boot_epoch: the daemon's
 * @hello: last answer to HELLO
 * @state_wait: woken when @state changes
 * @driver_epoch: ours, sent with every HELLO, another one for each session;
 *	changes only when @state becomes %VRAM_STALE
 * @tag: of the last message
 * @progress: like &vram_queue.progress, for all queues
 * @nudged: jiffies when the device was last asked whether it is alive
 * @rings: read side: using a virtqueue; see vram_rings_stop()
 * @rings_live: there are virtqueues
 * @restart_work: starts the rings and the session anew
 * @deferred_work: frees what the callbacks may not free
 * @deferred: messages for it
 * @events: buffers posted on the event queue
 * @event_count: how many
 * @event_log: what came in them
 * @queue_limit: entries of @queues
 * @queue_count: queues in use
 * @request_queues: those behind control and event
 * @interrupt_vectors: one for each queue, or 0
 * @config_segments: as the configuration space says
 * @config_transfer: as the configuration space says
 * @max_segments: data segments in one request
 * @max_segment_bytes: bytes in one of them, whole pages
 * @max_transfer: bytes in one request, whole pages
 * @queues: control, event, requests
 */
struct vram_device {
	struct kref refs;
	struct virtio_device *vdev;
	struct miscdevice misc;
	int id;
	char name[16];

	spinlock_t state_lock;	/* up to @hello */
	enum vram_state state;
	u32 generation;
	u64 boot_epoch;
	struct virtio_vram_hello_reply hello;
	wait_queue_head_t state_wait;

	u64 driver_epoch;
	atomic64_t tag;
	unsigned long progress;
	unsigned long nudged;

	struct srcu_struct rings;
	bool rings_live;
	struct work_struct restart_work;
	struct work_struct deferred_work;
	struct llist_head deferred;

	struct virtio_vram_event *events;
	unsigned int event_count;
	struct vram_event_log event_log;
	unsigned int queue_limit;
	unsigned int queue_count;
	unsigned int request_queues;
	unsigned int interrupt_vectors;
	u32 config_segments;
	u64 config_transfer;
	unsigned int max_segments;
	size_t max_segment_bytes;
	size_t max_transfer;
	struct vram_queue queues[];
};

/**
 * struct vram_context - a context of the device
 * @number: as the device gave it, 0 before
 * @generation: session in which it did
 */
struct vram_context {
	u32 number;
	u32 generation;
};

/* virtio_vram_drv.c */
extern struct workqueue_struct *vram_workqueue;
void vram_device_release(struct kref *refs);
bool vram_device_set_state(struct vram_device *vram, unsigned long from,
			   enum vram_state to);
void vram_device_break(struct vram_device *vram, const char *why);
void vram_device_lose_session(struct vram_device *vram);
int vram_device_wait_ready(struct vram_device *vram);

/* virtio_vram_queue.c */
int vram_messages_init(void);
void vram_messages_exit(void);
struct vram_message *vram_message_alloc(u16 opcode, size_t reply_bytes);
void vram_message_name_context(struct vram_message *msg,
			       const struct vram_context *context, u32 stream);
void vram_message_put(struct vram_message *msg);
int vram_message_wait(struct vram_message *msg);
int vram_message_send(struct vram_queue *queue, struct vram_message *msg);
unsigned long vram_timeout(void);
int vram_queue_try_submit(struct vram_queue *queue, struct vram_message *msg);
int vram_queue_submit(struct vram_queue *queue, struct vram_message *msg);
void vram_queue_forget(struct vram_message *msg);
void vram_queue_callback(struct virtqueue *vq);
void vram_message_answered(struct vram_message *msg, int error);
void vram_deferred_work(struct work_struct *work);

/* virtio_vram_rings.c */
int vram_rings_start(struct vram_device *vram);
void vram_rings_stop(struct vram_device *vram, int error);
void vram_rings_fail(struct vram_device *vram, int error);

/* virtio_vram_session.c */
int vram_session_hello(struct vram_device *vram);
int vram_session_info(struct vram_device *vram, struct vram_message **answer);
void vram_session_nudge(struct vram_device *vram);
int vram_context_open(struct vram_device *vram, struct vram_context *context);
void vram_context_close_message(struct vram_message *msg,
				const struct vram_context *context);
int vram_memory_alloc(struct vram_device *vram,
		      const struct vram_context *context, u64 length,
		      u64 alignment, u64 *address);
int vram_memory_free(struct vram_device *vram,
		     const struct vram_context *context, u64 address);
int vram_memory_query(struct vram_device *vram,
		      const struct vram_context *context, u64 address, u32 first,
		      u32 capacity, struct vram_message **answer);
struct vram_ioctl_advise;
int vram_memory_advise(struct vram_device *vram,
		       const struct vram_context *context,
		       const struct vram_ioctl_advise *args);
void vram_session_undo(struct vram_message *msg);

/* virtio_vram_events.c */
void vram_events_init(struct vram_device *vram);
void vram_events_post(struct vram_queue *queue,
		      struct virtio_vram_event *event);
void vram_events_callback(struct virtqueue *vq);
void vram_events_follow(struct vram_device *vram,
			struct vram_event_cursor *cursor);
bool vram_events_waiting(struct vram_device *vram,
			 const struct vram_event_cursor *cursor);
bool vram_events_read(struct vram_device *vram,
		      struct vram_event_cursor *cursor,
		      struct virtio_vram_event *event);

/* virtio_vram_transfer.c */
struct vram_ioctl_transfer;
struct vram_ioctl_copy;
struct vram_ioctl_fill;
struct vram_ioctl_fence;
int vram_data_transfer(struct vram_device *vram,
		       const struct vram_context *context,
		       struct vram_ioctl_transfer *args);
int vram_data_copy(struct vram_device *vram, const struct vram_context *context,
		   struct vram_ioctl_copy *args);
int vram_data_fill(struct vram_device *vram, const struct vram_context *context,
		   struct vram_ioctl_fill *args);
int vram_data_fence(struct vram_device *vram,
		    const struct vram_context *context,
		    const struct vram_ioctl_fence *args);
void vram_data_unpin(struct vram_message *msg);

/* virtio_vram_chardev.c */
int vram_chardev_add(struct vram_device *vram);
void vram_chardev_remove(struct vram_device *vram);

/* pr_* rather than dev_*: files may outlive the struct device. */
#define vram_err(vram, fmt, ...) \
	pr_err("%s: " fmt, (vram)->name, ##__VA_ARGS__)
#define vram_warn_ratelimited(vram, fmt, ...) \
	pr_warn_ratelimited("%s: " fmt, (vram)->name, ##__VA_ARGS__)
#define vram_info_ratelimited(vram, fmt, ...) \
	pr_info_ratelimited("%s: " fmt, (vram)->name, ##__VA_ARGS__)
#define vram_info(vram, fmt, ...) \
	pr_info("%s: " fmt, (vram)->name, ##__VA_ARGS__)

#endif /* _VIRTIO_VRAM_PRIV_H */
