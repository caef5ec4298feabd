/* TensorRT's libraries without TensorRT: NVIDIA's Python bindings can be imported and make objects, which
 * do nothing. The bindings check the names and the arguments of each call before they call an object.
 *
 * All objects are one: each of its virtual functions returns its address, and so does each function of
 * the libraries. The object is laid out as GCC lays out objects with virtual functions: the address of
 * the table of these functions, then members, of which the first is TensorRT's pointer to itself.
 */
#include <stddef.h>

enum { FUNCTIONS = 512, MEMBERS = 64 };
extern void *_ZTVN10__cxxabiv117__class_type_infoE[];
static struct { void *table; const char *name; } type = {&_ZTVN10__cxxabiv117__class_type_infoE[2], "4Stub"};
static void *table[2 + FUNCTIONS]; /* the offset of the object, its type, the functions */
static void *object[MEMBERS];

static void *object_address(void) { return object; }

__attribute__((constructor)) static void fill(void) {
    table[1] = &type;
    for (size_t i = 2; i < 2 + FUNCTIONS; i++) table[i] = object_address;
    object[0] = &table[2];
    for (size_t i = 1; i < MEMBERS; i++) object[i] = object;
}

void *createInferBuilder_INTERNAL(void) { return object; }
void *createInferRefitter_INTERNAL(void) { return object; }
void *createInferRuntime_INTERNAL(void) { return object; }
void *createNvOnnxParser_INTERNAL(void) { return object; }
void *createNvOnnxParserRefitter_INTERNAL(void) { return object; }
void *getBuilderPluginRegistry(void) { return object; }
void *getPluginRegistry(void) { return object; }
int getNvOnnxParserVersion(void) { return 0; }
int initLibNvInferPlugins(void) { return 1; }
