/* On the host, types are as they are declared. */
#ifndef FAKE_BPF_CORE_READ_H
#define FAKE_BPF_CORE_READ_H

#define bpf_core_field_exists(field) 1
#define bpf_core_enum_value_exists(type, value) 1
#define FAKE_READ_1(from, a) ((from)->a)
#define FAKE_READ_2(from, a, b) ((from)->a->b)
#define FAKE_READ_CHOSEN(a, b, name, ...) name
#define BPF_CORE_READ(from, path...) FAKE_READ_CHOSEN(path, FAKE_READ_2, FAKE_READ_1)(from, path)
#define BPF_CORE_READ_INTO(to, from, path) memcpy(to, &(from)->path, sizeof(*(to)))

#endif
