/* The MX codec: float matrices to MXFP6 codes, scales and kernel tiles, and back. docs/formats.md specifies the bytes.
 *
 * Plain C. Every function returns a status, never throws, and checks what it can see; the caller (formats/native/
 * __init__.py) owns all memory. The instruction set is chosen at run time; MXSPEC_ISA overrides the choice
 * (isa.cpp has the names). All instruction sets and thread counts write the same bytes and the same statistics. */
#ifndef MXSPEC_FORMATS_NATIVE_CODEC_H_
#define MXSPEC_FORMATS_NATIVE_CODEC_H_

#include <stdint.h>

#define MXSPEC_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum mxspec_status {
  MXSPEC_OK = 0,
  MXSPEC_NULL_POINTER = 1,
  MXSPEC_BAD_SHAPE = 2,       /* rows or columns below 1, or more than 2^40 entries */
  MXSPEC_BAD_CHOICE = 3,      /* an element, rounding or type that there is not */
  MXSPEC_BAD_ROWS = 4,        /* a row range that does not start and end on a tile, or leaves the matrix */
  MXSPEC_BAD_OUTPUT = 5,      /* an output whose size is not that of the tiles */
  MXSPEC_BAD_CODE = 6,        /* a code above the element's largest */
  MXSPEC_UNKNOWN_ISA = 7,     /* MXSPEC_ISA names no instruction set */
  MXSPEC_UNSUPPORTED_ISA = 8, /* MXSPEC_ISA names one that this machine or build lacks */
  MXSPEC_NO_MEMORY = 9
};

enum mxspec_rounding { MXSPEC_EVEN = 0, MXSPEC_AWAY = 1 };
enum mxspec_type { MXSPEC_FLOAT32 = 0, MXSPEC_FLOAT16 = 1, MXSPEC_BFLOAT16 = 2 };

/* A matrix of n output rows and k columns (the reduction). Stored by rows, or, when transposed is 1, by columns:
 * entry (row, column) lies at data[row * stride + column], or at data[column * stride + row]. */
typedef struct mxspec_matrix {
  const void* data;
  int64_t n;
  int64_t k;
  int64_t stride; /* entries from one stored line to the next */
  int32_t type;   /* mxspec_type */
  int32_t transposed;
} mxspec_matrix;

/* What packing did to the values: sums over all finite entries, and counts of those that need a word in the report. */
typedef struct mxspec_statistics {
  double squared_error; /* sum of (value - packed value)^2 */
  double squared_norm;  /* sum of value^2 */
  int64_t nonfinite;    /* NaN and infinite entries */
  int64_t overflow;     /* finite entries beyond 65504 (fp16 only) */
  int64_t underflow;    /* nonzero entries packed as zero */
} mxspec_statistics;

MXSPEC_API const char* mxspec_status_text(int32_t status);

/* The name of the instruction set that MXSPEC_ISA=wanted gives (the widest for NULL or ""), NULL where it gives none.
 */
MXSPEC_API const char* mxspec_codec_isa(const char* wanted);

/* A line a weight format: number, name, bits, bytes of a tile's codes and of its scales, activations. */
MXSPEC_API const char* mxspec_codec_weight_formats(void);

/* An element is the number of its weight format in weight_formats.h, less one.
 *
 * codes uint8[n, k], scales uint8[n, ceil(k / 32)]. A block with NaN or infinity: scale 255, codes 0. threads >= 1. */
MXSPEC_API int32_t mxspec_quantize(const mxspec_matrix* values, int32_t element, int32_t rounding, int32_t threads,
                                   uint8_t* codes, uint8_t* scales);

/* values float32[n, k] = element value * 2^(scale - 127); scale 255 gives NaN. */
MXSPEC_API int32_t mxspec_dequantize(const uint8_t* codes, const uint8_t* scales, int64_t n, int64_t k, int32_t element,
                                     float* values);

/* packed uint8[ceil(n / 16), ceil(k / 32) * tile], tile: 272 bytes (4 bits), 400 (6 bits) or 528 (8 bits). */
MXSPEC_API int32_t mxspec_pack(const uint8_t* codes, const uint8_t* scales, int64_t n, int64_t k, int32_t element,
                               uint8_t* packed);
MXSPEC_API int32_t mxspec_unpack(const uint8_t* packed, int64_t n, int64_t k, int32_t element, uint8_t* codes,
                                 uint8_t* scales);

/* quantize and pack of the rows [row_begin, row_end) in one pass; packed_bytes is the size of the output. */
MXSPEC_API int32_t mxspec_quantize_pack(const mxspec_matrix* values, int64_t row_begin, int64_t row_end,
                                        int32_t element, int32_t rounding, int32_t threads, uint8_t* packed,
                                        int64_t packed_bytes, mxspec_statistics* statistics);

/* The same to fp16 tiles, uint8[ceil(n / 16), ceil(k / 32) * 1024], rounded to nearest even. */
MXSPEC_API int32_t mxspec_pack_fp16(const mxspec_matrix* values, int64_t row_begin, int64_t row_end, int32_t threads,
                                    uint8_t* packed, int64_t packed_bytes, mxspec_statistics* statistics);
MXSPEC_API int32_t mxspec_unpack_fp16(const uint8_t* packed, int64_t n, int64_t k, uint16_t* values);

#ifdef __cplusplus
}
#endif

#endif /* MXSPEC_FORMATS_NATIVE_CODEC_H_ */
