"""The name of this build of the core (release, debug, ...) and a digest of the sources that it was made from."""

cdef extern from *:
    """
    #ifndef KBROKER_BUILD_NAME
    #define KBROKER_BUILD_NAME "unknown"
    #define KBROKER_SOURCE_DIGEST ""
    #endif
    """
    const char *KBROKER_BUILD_NAME
    const char *KBROKER_SOURCE_DIGEST

BUILD = KBROKER_BUILD_NAME.decode()
SOURCE_DIGEST = KBROKER_SOURCE_DIGEST.decode()
