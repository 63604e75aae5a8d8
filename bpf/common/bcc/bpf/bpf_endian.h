/* BCC has libbpf's headers not at hand. */
#ifndef OTEL_BRIDGE_BCC_ENDIAN_H
#define OTEL_BRIDGE_BCC_ENDIAN_H

#include <asm/byteorder.h>

#define bpf_ntohs(value) ___constant_swab16(value)

#endif
