"""Layouts: what the schema data say of one struct. Plans: a layout as one version of the message has it on the wire.

Both live as long as the process. Layouts are made with their class, plans when a version is first used.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int8_t, uint8_t

from kbroker._core.base.raw_objects cimport PyTypeObject

# What a value is on the wire. The fixed-size kinds come first.
cdef enum:
    BOOL
    INT8
    INT16
    UINT16
    INT32
    UINT32
    INT64
    FLOAT64
    UUID
    STRING
    BYTES
    STRUCT

cdef extern from *:
    """
    __attribute__((unused)) static const int FIXED_SIZE[] = {1, 1, 2, 2, 4, 4, 8, 8, 16, 0, 0, 0};
    """
    const int FIXED_SIZE[12]     # bytes of a value of each kind; 0 when they vary

cdef enum:
    # How a field gets its default.
    SHARED_DEFAULT       # one immutable object
    NEW_LIST
    NEW_STRUCT
    ALL_VERSIONS = 32767

cdef struct plan_t
cdef struct layout_t

cdef struct range_t:
    int low
    int high                     # below `low`: none

cdef struct field_t:
    PyObject *name               # interned
    Py_ssize_t offset            # of the slot in an instance
    uint8_t kind
    bint is_array
    uint8_t default_kind
    PyObject *default_value      # NULL unless SHARED_DEFAULT
    layout_t *child              # of STRUCT
    range_t versions
    range_t nullable
    range_t tagged
    int tag
    bint droppable               # a version without the field drops its value silently
    bint never_flexible

cdef struct op_t:
    # One field in one version.
    field_t *field
    uint8_t kind
    bint is_array
    bint nullable
    bint compact
    int8_t null_struct           # the byte in front of a nullable struct that means null
    Py_ssize_t offset
    plan_t *child
    size_t element_size          # least bytes of one array element

cdef struct plan_t:
    layout_t *layout
    int version
    bint flexible
    size_t least_size            # bytes that any value takes
    int op_count
    op_t *ops                    # in wire order
    int tagged_count
    op_t *tagged                 # by tag
    int absent_count
    field_t **absent             # fields that this version does not have

cdef struct layout_t:
    PyTypeObject *cls
    PyObject *name               # as errors call it
    int field_count
    field_t *fields
    range_t versions             # of the message
    range_t flexible             # of the message
    plan_t **plans               # by version - versions.low; NULL until used

# The layout of a message class or of one of its structs; TypeError for any other class.
cdef layout_t *layout_of(PyObject *cls) except NULL
# Make the layout of a class; `define_fields` completes it when all structs of the message have theirs.
cdef int define_class(object cls, str name, range_t versions, range_t flexible, Py_ssize_t field_count) except -1
cdef int define_fields(object cls, list fields, dict structs) except -1
# `3+`, `2-5`, `7` or `none`.
cdef range_t parse_range(str text) except *
# ProtocolError (UNSUPPORTED_VERSION) when the message has no such version.
cdef plan_t *plan_for(layout_t *layout, int version) except NULL
# A new reference to a field's default.
cdef PyObject *new_default(field_t *field) except NULL
