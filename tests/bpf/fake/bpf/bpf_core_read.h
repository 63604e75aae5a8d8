/* On the host, types are as they are declared. */
#ifndef FAKE_BPF_CORE_READ_H
#define FAKE_BPF_CORE_READ_H

#define bpf_core_field_exists(field) 1
#define bpf_core_enum_value_exists(type, value) 1
#define BPF_CORE_READ(from, field) ((from)->field)

#endif
