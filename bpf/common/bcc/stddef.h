/* BCC compiles with the kernel's headers alone. */
#include <linux/stddef.h>
