// SPDX-License-Identifier: Apache-2.0

/* UUIDs of names, version 5 (RFC 9562 §5.5), with SHA-1 (RFC 3174) for short messages. */
#include "sim.h"

enum { BLOCK = 64, MAX_NAME = BLOCK - 16 - 9 };

static uint32_t rotate(uint32_t word, unsigned bits)
{
    return word << bits | word >> (32 - bits);
}

static void expand(const uint8_t block[BLOCK], uint32_t words[80])
{
    for (unsigned i = 0; i < 16; i++)
        words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
                   (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (unsigned i = 16; i < 80; i++)
        words[i] = rotate(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
}

static uint32_t mix(unsigned step, uint32_t b, uint32_t c, uint32_t d)
{
    switch (step / 20) {
    case 0:
        return ((b & c) | (~b & d)) + 0x5a827999;
    case 1:
        return (b ^ c ^ d) + 0x6ed9eba1;
    case 2:
        return ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc;
    default:
        return (b ^ c ^ d) + 0xca62c1d6;
    }
}

/* The digest of one padded block, which is all that a message of up to 55 bytes has. */
static void sha1_of_block(const uint8_t block[BLOCK], uint32_t digest[5])
{
    static const uint32_t start[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    uint32_t words[80], a = start[0], b = start[1], c = start[2], d = start[3], e = start[4];
    expand(block, words);
    for (unsigned step = 0; step < 80; step++) {
        uint32_t next = rotate(a, 5) + mix(step, b, c, d) + e + words[step];
        e = d, d = c, c = rotate(b, 30), b = a, a = next;
    }
    const uint32_t end[5] = {a, b, c, d, e};
    for (unsigned i = 0; i < 5; i++)
        digest[i] = start[i] + end[i];
}

void uuid5(const uint8_t namespace_uuid[16], const char *name, uint8_t uuid[16])
{
    uint8_t block[BLOCK] = {0};
    uint32_t digest[5];
    size_t length = strnlen(name, MAX_NAME);
    memcpy(block, namespace_uuid, 16);
    memcpy(block + 16, name, length);
    block[16 + length] = 0x80;
    block[BLOCK - 2] = (uint8_t)((16 + length) * 8 >> 8);
    block[BLOCK - 1] = (uint8_t)((16 + length) * 8);
    sha1_of_block(block, digest);
    for (unsigned i = 0; i < 16; i++)
        uuid[i] = (uint8_t)(digest[i / 4] >> (24 - i % 4 * 8));
    uuid[6] = (uuid[6] & 0x0f) | 0x50;
    uuid[8] = (uuid[8] & 0x3f) | 0x80;
}
