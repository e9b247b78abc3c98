// The configurations, as rows of macros `SM90`, `SM90_E4M3` (not of other codes) and `SM90_SPLIT` (likewise) of the file that includes this, and of SM90_PLAIN and SM90_PLAIN_SPLIT, which sm90_plain.cu alone
// has: of whole products to a plain BF16 D. Sm90Config in src/gpu/kernels/sm90_config.rs mirrors the table; a test
// of sm90.rs reads these lines. What was measured of them, and of others that did not win: benches/record/2026-11-23-nvidia-h200/sm90-kernels.md,
// benches/record/2026-11-26-nvidia-h200-sm90/kernels.md, benches/record/2026-11-26-nvidia-h100-sm90 and benches/record/2026-11-27-nvidia-h100-sm90.
#ifndef SM90_PLAIN
#define SM90_PLAIN(...)
#define SM90_PLAIN_SPLIT(...)
#endif
// (Shared memory is that of the kernel that needs most. Stages, depth and unrolled k-blocks are others in some kernels: see sm90_loop.cuh.)
// name, rows, columns, warpgroups, shared operand, stages, atom, depth, unrolled k-blocks, store, residents, shared memory
SM90(256x128, 256, 128, 2, SHARE_A, 3, 128, 1, 4, STORE_BOXES, 1, 220288)
SM90(128x128, 128, 128, 2, SHARE_NONE, 5, 128, 1, 8, STORE_BOXES, 1, 202912)
SM90_E4M3(128x160, 128, 160, 2, SHARE_NONE, 5, 160, 1, 4, STORE_DIRECT, 1, 207648)
SM90_E4M3(128x192, 128, 192, 2, SHARE_NONE, 4, 192, 1, 4, STORE_BOXES, 1, 219264)
SM90_E4M3(64x192, 64, 192, 1, SHARE_NONE, 6, 192, 1, 4, STORE_DIRECT, 1, 212160)
SM90_E4M3(128x64, 128, 64, 2, SHARE_NONE, 8, 64, 1, 8, STORE_STAGED, 1, 220416)
SM90(64x128, 64, 128, 2, SHARE_NONE, 8, 64, 1, 8, STORE_STAGED, 1, 220416)
SM90_E4M3(64x64, 64, 64, 1, SHARE_NONE, 12, 64, 1, 8, STORE_STAGED, 1, 212352)
SM90(64x64_two, 64, 64, 1, SHARE_NONE, 6, 64, 2, 4, STORE_STAGED, 2, 110784)
// The same, and how many blocks divide k, of one tile of a whole product. They store directly.
SM90_SPLIT(128x160_k2, 128, 160, 2, SHARE_NONE, 5, 160, 1, 4, STORE_DIRECT, 1, 207648, 2)
SM90_SPLIT(128x64_k2, 128, 64, 2, SHARE_NONE, 8, 64, 1, 8, STORE_DIRECT, 1, 220416, 2)
SM90_SPLIT(64x64_k2, 64, 64, 1, SHARE_NONE, 12, 64, 1, 8, STORE_DIRECT, 1, 212352, 2)
SM90_SPLIT(64x64_k3, 64, 64, 1, SHARE_NONE, 12, 64, 1, 8, STORE_DIRECT, 1, 212352, 3)
SM90_SPLIT(64x64_k4, 64, 64, 1, SHARE_NONE, 12, 64, 1, 8, STORE_DIRECT, 1, 212352, 4)
// With a plain end, where no slabs and no other ends take memory and registers. What they win, at one shape or at several: 128x144 7 to 14 %, and 128x144_k2 18 %, where tiles of 160 columns are too few or a little
// more than whole rounds (n of 576 and 2112), 128x80, 128x96 and 64x32 7 to 10 % of one round.
SM90_PLAIN(128x144, 128, 144, 2, SHARE_NONE, 6, 144, 1, 4, STORE_DIRECT, 1, 216640)
SM90_PLAIN(128x96, 128, 96, 2, SHARE_NONE, 6, 96, 1, 6, STORE_DIRECT, 1, 178624)
SM90_PLAIN(128x80, 128, 80, 2, SHARE_NONE, 8, 80, 1, 4, STORE_DIRECT, 1, 220928)
SM90_PLAIN(64x32, 64, 32, 1, SHARE_NONE, 12, 32, 2, 12, STORE_DIRECT, 1, 153472)
SM90_PLAIN_SPLIT(128x144_k2, 128, 144, 2, SHARE_NONE, 6, 144, 1, 4, STORE_DIRECT, 1, 216640, 2)
SM90_PLAIN_SPLIT(128x96_k2, 128, 96, 2, SHARE_NONE, 7, 96, 1, 4, STORE_DIRECT, 1, 208224, 2)
