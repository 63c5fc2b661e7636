#include <stdio.h>
#include <vram.h>

int main(void)
{
	struct vram_device *device;
	uint64_t address;
	char back[6] = "";
	int error = vram_open(NULL, &device);	/* $VRAM_DEVICE, or /dev/vram0 */

	if (!error)
		error = vram_alloc(device, 1 << 20, 0, &address);
	if (!error)
		error = vram_write(device, 0, address, "hello", 5, NULL);
	if (!error)
		error = vram_read(device, 0, address, back, 5, NULL);
	if (error) {
		fprintf(stderr, "hello: %s\n", vram_strerror(error));
		return 1;
	}
	printf("%s from 0x%llx\n", back, (unsigned long long)address);
	return vram_close(device) != 0;
}
